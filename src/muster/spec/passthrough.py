"""Interpret `--sbatch KEY=VALUE`: refuse invalid keys, and move options that have a field into it.

`--sbatch partition=x` and `--partition x` are the same option, so the value is moved into the field. After that a key
in `sbatch` has no field, except with the value "": submit without this option, even if Muster has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.spec.errors import show
from muster.spec.flags import Flag, long_flag
from muster.spec.sbatch_options import NO_VALUE, option_name, refusal


@dataclass
class MovedOptions:
    """The fields of a layer with every sbatch option in exactly one place."""

    values: dict[str, Any]
    moved: dict[str, str] = field(default_factory=dict)
    """Fields that got their value from `sbatch`, each with the key as written."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Refused keys as written, each with the reason; `values` does not have them."""


def move_options(fields: Mapping[str, Any], flags: Mapping[str, Flag]) -> MovedOptions:
    """Check the keys of `fields["sbatch"]`, replace them by long names, and move options that have a field into it."""
    result = MovedOptions(dict(fields))
    given = fields.get("sbatch")
    if not isinstance(given, Mapping):  # absent, or of a wrong type, which the model reports
        return result
    owner = {flag.sbatch: name for name, flag in flags.items() if flag.sbatch}
    kept: dict[Any, Any] = {}
    for key, value in given.items():
        name = option_name(str(key))
        value, problem = _checked(name, value)
        if problem is None and name in kept:
            problem = f"is given twice, as {show(kept[name])} and as {show(value)}"
        if problem is None and name in owner:
            problem = _conflict(owner[name], name, value, result.values)
        if problem is not None:
            result.problems.append((str(key), problem))
        elif name in owner and value != "":
            result.values[owner[name]] = True if value is None else value
            result.moved[owner[name]] = str(key)
        else:
            kept[name] = value
    result.values["sbatch"] = kept
    return result


def _checked(name: str, value: Any) -> tuple[Any, str | None]:
    """Return the normalized value, and why this key cannot be passed through, or None."""
    problem = refusal(name)
    if problem is None and name in NO_VALUE and value is not None:
        word = str(value).lower()
        if word not in ("", "true", "false"):
            problem = f"takes no value, but has {show(value)}; write only {name}"
        value = None if word == "true" else ""
    return value, problem


def _conflict(owner: str, name: str, value: Any, values: Mapping[str, Any]) -> str | None:
    """Return the conflict if one layer gives the option in two ways with different values."""
    other = values.get(owner)
    wanted = True if value is None else value
    if other is None or str(other).lower() == str(wanted).lower():
        return None
    removed = "removed" if value == "" else show(wanted)
    return f"is {removed}, but {long_flag(owner)} (field {owner}) is {show(other)}; give it once"
