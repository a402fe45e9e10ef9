"""What one place (a settings file, the environment, the job file, the flags) says about the job, and who wins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from muster.spec.flags import spellings
from muster.spec.model import FLAGS
from muster.spec.passthrough import settle
from muster.spec.sbatch_options import option_name

KEYED = ("env", "sbatch")
"""Fields that hold entries: a later source adds to them or replaces one, instead of replacing all."""


@dataclass
class Source:
    """Fields and where they were written. Several laid over each other are a source again."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Where each field, and each `field.key`, was written: "--nodes", "job.yaml: nodes"."""
    problems: list[str] = field(default_factory=list)


def from_file(place: str, content: Mapping[str, Any], prefix: str = "") -> Source:
    """The fields of a file, or of a section of it: `place` is the file's name, `prefix` as in "profiles.gpu."."""
    known = spellings(FLAGS)
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    problems: list[str] = []
    for key, value in content.items():
        name = known.get(key.replace("-", "_"))
        if name is None:
            problems.append(f"{place}: {_unknown_field(prefix + key, list(known))}")
        elif name in written:
            problems.append(f"{place}: {prefix}{written[name]} and {prefix}{key} are the same field; give it once")
        else:
            values[name], written[name] = value, key
    return settled(values, problems, lambda name, key: f"{place}: {prefix}{name}" + (f".{key}" if key else ""))


def _unknown_field(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key.rpartition(".")[2].replace("-", "_"), known, n=3)
    hint = f" did you mean {', '.join(near)}?" if near else ""
    return f"unknown field {key!r};{hint} valid fields: {', '.join(FLAGS)}"


def settled(values: dict[str, Any], problems: list[str], origin: Callable[[str, str], str]) -> Source:
    """A source whose pass-through options are in one place each, with the origin of everything it says."""
    result = settle(values, FLAGS)
    origins = {name: origin(name, "") for name in result.values}
    for name in KEYED:
        entries = values.get(name)
        if isinstance(entries, Mapping):
            for key in entries:
                # The model knows an sbatch option by its long name, the user by what was written.
                known = option_name(str(key)) if name == "sbatch" else key
                origins[f"{name}.{known}"] = origin(name, str(key))
    origins.update({name: origin("sbatch", key) for name, key in result.moved.items()})
    refused = [f"{origin('sbatch', key)}: {problem}" for key, problem in result.problems]
    return Source(result.values, origins, problems + refused)


def merged(sources: Iterable[Source]) -> Source:
    """All sources in one, later ones winning: field by field, and entry by entry where a field holds entries."""
    return reduce(_laid_over, sources, Source())


def _laid_over(low: Source, high: Source) -> Source:
    values = {**low.values, **high.values}
    for name in KEYED:
        above, below = high.values.get(name), low.values.get(name)
        if (above is None or isinstance(above, Mapping)) and isinstance(below, Mapping):
            values[name] = {**below, **(above or {})}
    _drop_overruled(values, low.values, high.values)
    return Source(values, {**low.origins, **high.origins}, low.problems + high.problems)


def _drop_overruled(values: dict[str, Any], low: Mapping[str, Any], high: Mapping[str, Any]) -> None:
    """`--sbatch partition=` overrules the file's partition, and `--partition x` the file's removal of it."""
    removed_below, removed_above = _removals(low), _removals(high)
    for name, flag in FLAGS.items():
        if flag.sbatch in removed_above and name in low:
            del values[name]
        if flag.sbatch in removed_below and name in high and isinstance(values["sbatch"], dict):
            values["sbatch"].pop(flag.sbatch, None)


def _removals(values: Mapping[str, Any]) -> set[str]:
    """The sbatch options that a source wants left out."""
    entries = values.get("sbatch")
    return {key for key, value in entries.items() if value == ""} if isinstance(entries, Mapping) else set()
