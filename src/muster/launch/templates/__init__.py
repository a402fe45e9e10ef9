"""The shell code of a job, one file per part, with placeholders that are valid shell: `__RUN__`.

A file begins with a header of comments, up to the first blank line, which is not rendered.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_PLACEHOLDER = re.compile(r"^__(?P<line>[A-Z]+(?:_[A-Z]+)*)__\n|__(?P<word>[A-Z]+(?:_[A-Z]+)*)__", re.MULTILINE)


def render_template(name: str, **values: str) -> str:
    """Return the template `name` with its placeholders replaced, without newlines at either end.

    The values are inserted as they are: quoting is the caller's task. An empty value removes a line that consists of
    its placeholder only. Raises ValueError unless the values are exactly those that the template names.
    """
    text = _template(name)
    expected = {match["line"] or match["word"] for match in _PLACEHOLDER.finditer(text)}
    if expected != values.keys():
        missing, unknown = sorted(expected - values.keys()), sorted(values.keys() - expected)
        raise ValueError(f"template {name}: no value for {missing}, no placeholder for {unknown}")
    # All at once: a value may contain the placeholder of another.
    return _PLACEHOLDER.sub(lambda match: _inserted(match, values), text)


def _inserted(match: re.Match[str], values: dict[str, str]) -> str:
    if match["word"]:
        return values[match["word"]]
    value = values[match["line"]]
    return f"{value}\n" if value else ""


@cache
def _template(name: str) -> str:
    text = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
    return text.partition("\n\n")[2].strip("\n")
