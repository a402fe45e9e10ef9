"""Merge the layers of a job's fields: settings files, environment, job file, flags. Later layers win."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from muster.spec.errors import WHERE_FIELDS_ARE
from muster.spec.file_lines import normalized_lines
from muster.spec.flags import spellings
from muster.spec.model import FLAGS
from muster.spec.nearest import did_you_mean
from muster.spec.passthrough import move_options
from muster.spec.sbatch_options import option_name

ENTRY_FIELDS = ("env", "sbatch", "ray_resource", "ray_label", "node_check")
"""Fields that hold entries: a later layer adds or replaces single entries, not the whole field."""


@dataclass
class Layer:
    """Fields of the job and where they were written. Merged layers are a layer again."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Origin of each field and each `field.key`: "--nodes", "job.yaml: nodes"."""
    problems: list[str] = field(default_factory=list)
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    """Line of each key, by file and by path of the key (`env.A`, `groups.0.nodes`)."""


def file_layer(
    place: str,
    content: Mapping[str, Any],
    prefix: str = "",
    lines: Mapping[str, int] | None = None,
    not_allowed: Sequence[str] = (),
) -> Layer:
    """Return the layer of the file `place`, or of its section with `prefix`, as in "profiles.gpu.".

    `lines` are the lines of keys, for errors. Fields in `not_allowed` are not suggested for a misspelt one.
    """
    known = spellings(FLAGS)
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    problems: list[str] = []
    for key, value in content.items():
        name = known.get(key.replace("-", "_"))
        if name is None:
            line = f":{lines[prefix + key]}" if lines and prefix + key in lines else ""
            problems.append(f"{place}{line}: {unknown_field(key, prefix, not_allowed)}")
        elif name in written:
            problems.append(f"{place}: {prefix}{written[name]} and {prefix}{key} are the same field; give one of them")
        else:
            values[name], written[name] = value, key
    layer = make_layer(values, problems, lambda name, key: f"{place}: {prefix}{name}" + (f".{key}" if key else ""))
    return replace(layer, lines={place: normalized_lines(lines or {}, known)})


def unknown_field(key: str, prefix: str = "", not_allowed: Sequence[str] = ()) -> str:
    """Return the error text for a field that jobs do not have."""
    known = [spelling for spelling, name in spellings(FLAGS).items() if name not in not_allowed]
    return f"unknown field {prefix + key!r}; {did_you_mean(key, known, WHERE_FIELDS_ARE)}"


def make_layer(values: dict[str, Any], problems: list[str], origin: Callable[[str, str], str]) -> Layer:
    """Return the layer of these values, with each pass-through sbatch option moved into its field, if it has one."""
    result = move_options(values, FLAGS)
    origins = {name: origin(name, "") for name in result.values}
    for name in ENTRY_FIELDS:
        entries = values.get(name)
        if isinstance(entries, Mapping):
            for key in entries:
                # The model uses the long name of an sbatch option, the user may have written another.
                known = option_name(str(key)) if name == "sbatch" else key
                origins[f"{name}.{known}"] = origin(name, str(key))
    origins.update({name: origin("sbatch", key) for name, key in result.moved.items()})
    refused = [f"{origin('sbatch', key)}: {problem}" for key, problem in result.problems]
    return Layer(result.values, origins, problems + refused)


def merge_layers(layers: Iterable[Layer]) -> Layer:
    """Merge layers by field, and by entry for fields that hold entries. Later layers win."""
    return reduce(_merge, layers, Layer())


def _merge(low: Layer, high: Layer) -> Layer:
    values = {**low.values, **high.values}
    for name in ENTRY_FIELDS:
        above, below = high.values.get(name), low.values.get(name)
        if (above is None or isinstance(above, Mapping)) and isinstance(below, Mapping):
            values[name] = {**below, **(above or {})}
    _drop_overridden(values, low.values, high.values)
    return Layer(values, {**low.origins, **high.origins}, low.problems + high.problems, {**low.lines, **high.lines})


def _drop_overridden(values: dict[str, Any], low: Mapping[str, Any], high: Mapping[str, Any]) -> None:
    """Apply removals: `--sbatch partition=` removes the file's partition, `--partition x` cancels its removal."""
    removed_below, removed_above = _removals(low), _removals(high)
    for name, flag in FLAGS.items():
        if flag.sbatch in removed_above and name in low:
            del values[name]
        if flag.sbatch in removed_below and name in high and isinstance(values["sbatch"], dict):
            values["sbatch"].pop(flag.sbatch, None)


def _removals(values: Mapping[str, Any]) -> set[str]:
    """Return the sbatch options that a layer removes."""
    entries = values.get("sbatch")
    return {key for key, value in entries.items() if value == ""} if isinstance(entries, Mapping) else set()
