"""Explain an invalid job: the origin of each value, the value, and what is allowed instead."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

from pydantic import ValidationError

from muster.rundir.redaction import HIDDEN, looks_secret, redacted
from muster.spec.fields import groups, services
from muster.spec.flags import Flag
from muster.spec.nearest import did_you_mean

SERVICES = "services"
GROUPS = "groups"

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80
_shown.maxlevel = 2


WHERE_FIELDS_ARE = "fields are named as the flags in `muster run --help-all`"
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
        return _with_origin(reason, origins)
    field = str(loc[0])
    if field == "command" and problem["type"] == "missing":
        return NO_COMMAND
    if problem["type"] == "extra_forbidden" and len(loc) == 1:
        return f"unknown field {field!r}; {did_you_mean(field, flags, WHERE_FIELDS_ARE)}"
    if field == GROUPS:
        return _group_line(loc, problem, flags, origins)
    if field == SERVICES and len(loc) > 1:
        return _service_line(loc, problem, origins)
    allowed = f"; allowed: {flags[field].allowed}" if field in flags else ""
    secret = field == "env" and len(loc) == 2 and looks_secret(str(loc[1]))
    value = HIDDEN if secret else show(problem["input"])
    return f"{_origin(loc, origins)}: {value} {reason}{allowed}"


def _with_origin(reason: str, origins: Mapping[str, str]) -> str:
    """Replace the field that begins the reason of a conflict by its origin: "segment: ..." by "--segment: ..."."""
    path, colon, rest = reason.partition(": ")
    field, dot, inner = path.partition(".")
    return f"{origins[field]}{dot}{inner}{colon}{rest}" if colon and field in origins else reason


def _group_line(
    loc: tuple[int | str, ...], problem: Mapping[str, object], flags: Mapping[str, Flag], origins: Mapping[str, str]
) -> str:
    """Return the line with the group's number, from 1, and its field."""
    origin, given = origins.get(GROUPS, GROUPS), problem["input"]
    allowed = flags[GROUPS].allowed
    if len(loc) == 1:
        unknown = [str(key) for key in given if key not in groups.FIELDS] if isinstance(given, Mapping) else []
        if unknown:
            return f"{origin}: {groups.unknown_field(unknown[0])} allowed: {allowed}"
        return f"{origin}: {show(given)} {_reason(problem)}; allowed: {allowed}"
    group = f"{origin}, group {int(loc[1]) + 1}"
    if len(loc) == 2:
        return f"{group}: " + (
            _reason(problem) if problem["type"] == "value_error" else f"{show(given)} is not valid; allowed: {allowed}"
        )
    field = str(loc[2])
    if problem["type"] == "extra_forbidden":
        return f"{group}: {groups.unknown_field(field)}"
    if problem["type"] == "missing":
        return f"{group}: the field {field} is missing"
    known = f"; allowed: {flags[field].allowed}" if field in flags and field != "name" else ""
    return f"{group}, {'.'.join(map(str, loc[2:]))}: {show(given)} {_reason(problem)}{known}"


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
