"""Explain an invalid job: the origin of each value, the value, and what is allowed instead."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from muster.rundir.redaction import HIDDEN, looks_secret, redacted
from muster.spec.fields import services
from muster.spec.flags import Flag

SERVICES = "services"

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80
_shown.maxlevel = 2


class SpecError(ValueError):
    """Raised for an invalid job. The message has one line per problem and can be shown to users unchanged."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(on_one_line(problem) for problem in problems)
        super().__init__("\n".join(self.problems))


def on_one_line(text: str) -> str:
    """Return the text with control characters escaped: a problem may quote a key or a path with a newline."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


NO_COMMAND = "no command to run: give it after --, as in `muster run -N 2 -- python train.py`"


def explain(error: ValidationError, flags: Mapping[str, Flag], origins: Mapping[str, str]) -> list[str]:
    """Return one line per problem of the model; `origins` maps fields and `field.key` to where they were written."""
    lines = [_line(problem["loc"], problem, flags, origins) for problem in error.errors(include_url=False)]
    return list(dict.fromkeys(lines))


def _line(
    loc: tuple[int | str, ...],
    problem: Mapping[str, object],
    flags: Mapping[str, Flag],
    origins: Mapping[str, str],
) -> str:
    reason = _reason(problem)
    if not loc:
        return reason
    field = str(loc[0])
    if field == "command" and problem["type"] == "missing":
        return NO_COMMAND
    if field == SERVICES and len(loc) > 1:
        return _service_line(loc, problem, origins)
    allowed = f"; allowed: {flags[field].allowed}" if field in flags else ""
    secret = field == "env" and len(loc) == 2 and looks_secret(str(loc[1]))
    value = HIDDEN if secret else show(problem["input"])
    return f"{_origin(loc, origins)}: {value} {reason}{allowed}"


def _service_line(loc: tuple[int | str, ...], problem: Mapping[str, object], origins: Mapping[str, str]) -> str:
    """Return the line with the field's full path. A whole service is not quoted: it may be long or hold secrets."""
    parts = [str(part) for part in loc[1:] if not str(part).startswith(("function-", "literal[", "constrained-"))]
    path = ".".join([origins.get(SERVICES, SERVICES), *(part for part in parts if part != "[key]")])
    if problem["type"] == "extra_forbidden" and len(loc) == 3:
        return f"{path}: {services.unknown_field(str(loc[2]))}"
    known = len(loc) > 2 and str(loc[2]) in services.ALLOWED
    allowed = f"; allowed: {services.ALLOWED[str(loc[2])]}" if known else ""
    quoted = "" if isinstance(problem["input"], Mapping) or "env" in loc else f"{show(problem['input'])} "
    return f"{path}: {quoted}{_reason(problem)}{allowed}"


def _reason(problem: Mapping[str, object]) -> str:
    """Return the message of our validators; pydantic's are replaced, because `allowed` is clearer."""
    context = problem.get("ctx")
    if problem["type"] == "value_error" and isinstance(context, Mapping):
        return str(context["error"])
    return "is not valid"


def _origin(loc: tuple[int | str, ...], origins: Mapping[str, str]) -> str:
    field = str(loc[0])
    if len(loc) == 1:
        return origins.get(field, field)
    if isinstance(loc[1], int):
        return f"{origins.get(field, field)}, word {loc[1] + 1}"
    inner = f"{field}.{loc[1]}"
    return origins.get(inner, inner)


def show(value: object) -> str:
    """Return the value as quoted in errors: one line, escaped, shortened, without secrets."""
    return "nothing" if value is None else redacted(_shown.repr(value))
