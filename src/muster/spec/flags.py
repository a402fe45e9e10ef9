"""Define the command-line flag of a job field, which is attached to the field as metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel


@dataclass(frozen=True)
class Flag:
    """The flag of one field, for `--help`, for errors and for the command line's parser."""

    help: str
    group: str
    allowed: str
    """Description of valid values for errors: 'a whole number, 1 or more'."""
    short: str = ""
    aliases: tuple[str, ...] = ()
    """Further names of the flag and of the field in job files (`job-name` for `name`)."""
    metavar: str = ""
    sbatch: str = ""
    """The long sbatch option that this field sets, if any."""
    file_only: bool = False
    """True for fields that only a job file can set, because they are too large for a flag."""
    argument: bool = False
    """True only for COMMAND, which follows the options."""


def long_flag(field: str) -> str:
    """Return the long flag of a field: `--cpus-per-node` for `cpus_per_node`."""
    return "--" + field.replace("_", "-")


def flags_of(model: type[BaseModel]) -> dict[str, Flag]:
    """Return the flags of `model` by field, in the model's order."""
    found: dict[str, Flag] = {}
    for name, info in model.model_fields.items():
        for extra in info.metadata:
            if isinstance(extra, Flag):
                found[name] = extra
    return found


def spellings(flags: Mapping[str, Flag]) -> dict[str, str]:
    """Map every name of a field in a job file (its name and its aliases) to the field."""
    names = {name: name for name in flags}
    for name, flag in flags.items():
        names.update({alias.replace("-", "_"): name for alias in flag.aliases})
    return names
