"""What `--sbatch KEY=VALUE` means: which keys are refused, and which have a field of their own.

`--sbatch partition=x` and `--partition x` say the same thing, so the value moves into the field. After that a
key in `sbatch` has no field, except with the value "", which says: submit without this option, even where
Muster has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.spec.errors import show
from muster.spec.flags import Flag, long_flag
from muster.spec.sbatch_options import NO_VALUE, option_name, refusal


@dataclass
class Settled:
    """A source of the job (the file, or the flags) with every sbatch option in one place."""

    values: dict[str, Any]
    moved: dict[str, str] = field(default_factory=dict)
    """Fields that got their value from the pass-through, each with the key as it was written."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Keys that cannot be used, as written, each with the reason; they are left out of `values`."""


def settle(source: Mapping[str, Any], flags: Mapping[str, Flag]) -> Settled:
    """Check the keys of `source["sbatch"]`, give them long names, and move those with a field into it."""
    settled = Settled(dict(source))
    given = source.get("sbatch")
    if not isinstance(given, Mapping):  # absent, or of a wrong type: the model says so
        return settled
    owner = {flag.sbatch: name for name, flag in flags.items() if flag.sbatch}
    kept: dict[Any, Any] = {}
    for key, value in given.items():
        name = option_name(str(key))
        value, problem = _checked(name, value)
        if problem is None and name in kept:
            problem = f"is given twice, as {show(kept[name])} and as {show(value)}"
        if problem is None and name in owner:
            problem = _conflict(owner[name], name, value, settled.values)
        if problem is not None:
            settled.problems.append((str(key), problem))
        elif name in owner and value != "":
            settled.values[owner[name]] = True if value is None else value
            settled.moved[owner[name]] = str(key)
        else:
            kept[name] = value
    settled.values["sbatch"] = kept
    return settled


def _checked(name: str, value: Any) -> tuple[Any, str | None]:
    """The value in the form in which it is kept, or why this key cannot be passed through."""
    problem = refusal(name)
    if problem is None and name in NO_VALUE and value is not None:
        word = str(value).lower()
        if word not in ("", "true", "false"):
            problem = f"takes no value, but has {show(value)}; write {name} alone"
        value = None if word == "true" else ""
    return value, problem


def _conflict(owner: str, name: str, value: Any, values: Mapping[str, Any]) -> str | None:
    """The same option by two ways in one source is fine as long as they agree."""
    other = values.get(owner)
    wanted = True if value is None else value
    if other is None or str(other).lower() == str(wanted).lower():
        return None
    removed = "removed" if value == "" else show(wanted)
    return f"is {removed}, but {long_flag(owner)} (field {owner}) is {show(other)}; give it once"
