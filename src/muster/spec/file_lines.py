"""Add line numbers to problems of a job file or a settings file."""

from __future__ import annotations

import re
from collections.abc import Mapping

_GROUP = re.compile(r", group (\d+)")  # in messages, groups are counted from 1
_WORD = re.compile(r", word (\d+)")
_FIELD = re.compile(r", ([\w.]+)")


def normalized_lines(lines: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    """Return the lines of a file's keys by field: `names` maps names in files, such as aliases, to fields."""
    found = {}
    for path, line in lines.items():
        prefix, key, rest = _split(path)
        field = key.replace("-", "_")
        found[prefix + names.get(field, field) + rest] = line
    return found


def _split(path: str) -> tuple[str, str, str]:
    """Return the profile's prefix, the field and the rest of a path, as in `profiles.gpu.` `env` `.A`."""
    match = re.match(r"(profiles\.[^.]+\.)?([^.]*)(.*)", path, re.DOTALL)
    return (match[1] or "", match[2], match[3]) if match else ("", path, "")


def with_line(problem: str, lines: Mapping[str, Mapping[str, int]]) -> str:
    """Return the problem "FILE: FIELD: ..." as "FILE:LINE: FIELD: ..."; `lines` are those of each file by field.

    >>> with_line("job.yaml: services.a.scope: 'x' is not valid", {"job.yaml": {"services": 4, "services.a": 5}})
    "job.yaml:5: services.a.scope: 'x' is not valid"
    """
    for file, known in lines.items():
        rest = problem.removeprefix(f"{file}: ")
        if rest == problem:
            continue
        parts = _path(rest).split(".")
        for length in range(len(parts), 0, -1):
            if (line := known.get(".".join(parts[:length]))) is not None:
                return f"{file}:{line}: {rest}"
    return problem


def _path(text: str) -> str:
    """Return the field that begins the text, with the index of a group or word: `groups.0.nodes`."""
    path = text.partition(": ")[0].partition(" and ")[0]
    path = _GROUP.sub(lambda match: f".{int(match[1]) - 1}", path)
    path = _WORD.sub(lambda match: f".{int(match[1]) - 1}", path)
    return _FIELD.sub(r".\1", path)
