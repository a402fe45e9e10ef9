"""How a field of the job spec is spelt on the command line: metadata that sits on the field itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel


@dataclass(frozen=True)
class Flag:
    """One field's flag: what `--help`, the job file's errors and the command line's parser all read."""

    help: str
    group: str
    allowed: str
    """What a valid value looks like, as errors say it: 'a whole number, 1 or more'."""
    short: str = ""
    aliases: tuple[str, ...] = ()
    """Further names, for the flag and for the job file alike (`job-name` for `name`)."""
    metavar: str = ""
    sbatch: str = ""
    """The long sbatch option that this field answers for, if there is one."""
    file_only: bool = False
    """True for what is too large for a flag: it is written in the job file."""
    argument: bool = False
    """True for COMMAND alone, which is written after the options instead of behind a flag."""


def long_flag(field: str) -> str:
    """The long spelling of a field's flag: `cpus_per_node` is `--cpus-per-node`."""
    return "--" + field.replace("_", "-")


def flags_of(model: type[BaseModel]) -> dict[str, Flag]:
    """Every field of `model` with its flag, in the order in which the model states them."""
    found: dict[str, Flag] = {}
    for name, info in model.model_fields.items():
        for extra in info.metadata:
            if isinstance(extra, Flag):
                found[name] = extra
    return found


def spellings(flags: Mapping[str, Flag]) -> dict[str, str]:
    """Every name a job file may use for a field (its own name and the aliases), mapped to the field."""
    names = {name: name for name in flags}
    for name, flag in flags.items():
        names.update({alias.replace("-", "_"): name for alias in flag.aliases})
    return names
