"""Define groups: the sets of identical nodes in a job whose nodes differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from muster.spec import validators
from muster.spec.fields.slurm import validate_gpus
from muster.spec.nearest import did_you_mean
from muster.spec.types import Count, CountOrZero, Line, RayLabels, RayResources

if TYPE_CHECKING:
    from muster.spec.model import JobSpec


class Group(BaseModel):
    """A number of identical nodes. The group's name is a label and a Ray resource of these nodes.

    A field that is not set has the job's value. Resources and labels are added to the job's, or replace single ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(validators.label)]
    nodes: Count
    cpus_per_node: Count | None = None
    gpus_per_node: CountOrZero | None = None
    partition: Line | None = None
    constraint: Line | None = None
    gres: Line | None = None
    mem: Annotated[str, BeforeValidator(validators.memory)] | None = None
    nodelist: Line | None = None
    exclude: Line | None = None
    ray_resource: RayResources = Field(default_factory=dict)
    ray_label: RayLabels = Field(default_factory=dict)
    ray: bool | None = None  # whether its nodes belong to the Ray cluster of the job

    @model_validator(mode="after")
    def _validate_gpus(self) -> Group:
        validate_gpus(self.gpus_per_node, self.gres)
        return self


FIELDS = tuple(Group.model_fields)


def unknown_field(name: str) -> str:
    """Return the error text for a field that groups do not have."""
    fields = f"valid fields: {', '.join(FIELDS)};"
    return f"unknown field {name!r} of a group; {did_you_mean(name, FIELDS, fields)}"


def with_total(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's fields as given; `nodes`, if not given, is the sum of the groups' nodes."""
    groups = data.get("groups")
    counts = [_given(group, "nodes") for group in groups] if isinstance(groups, (list, tuple)) else []
    if not counts or "nodes" in data or not all(re.fullmatch(r"0*[1-9]\d*", str(count), re.ASCII) for count in counts):
        return dict(data)  # the model of the group reports an invalid count
    return {**data, "nodes": sum(int(str(count)) for count in counts)}


def _given(group: Any, field: str) -> Any:
    return group.get(field) if isinstance(group, Mapping) else getattr(group, field, None)


def validate_groups(groups: Sequence[Group], nodes: int) -> None:
    """Raise ValueError if two groups have the same name or their nodes do not add up to `nodes`."""
    repeated = [name for name, times in Counter(group.name for group in groups).items() if times > 1]
    if repeated:
        raise ValueError(f"groups: {repeated[0]!r} is the name of two groups; give each group a different name")
    total = sum(group.nodes for group in groups)
    if groups and total != nodes:
        raise ValueError(f"groups: they have {total} nodes in total, but nodes is {nodes}; remove nodes or correct it")


def validate_ray_of_groups(spec: JobSpec) -> None:
    """Raise ValueError if a group's part of the Ray cluster contradicts the job or the group's other fields."""
    for number, group in enumerate(spec.groups):
        if group.ray and not spec.ray:
            raise ValueError(f"groups: {group.name!r} has ray: true, but the job starts no Ray (--no-ray); remove one")
        if group.ray is not False:
            continue
        if number == 0 and spec.ray:
            raise ValueError(
                f"groups: {group.name!r} has ray: false, but the head of Ray and the driver are on the first node of"
                " the first group; list a group with Ray first, or run the job with --no-ray"
            )
        given = [field for field in ("ray_resource", "ray_label") if getattr(group, field)]
        if given:
            raise ValueError(f"groups: {group.name!r} has {given[0]}, but ray: false; remove one of them")


def resolved(spec: JobSpec) -> list[Group]:
    """Return the groups with unset fields filled in from the job.

    A group's GPUs replace the job's in either notation: --gres and --gpus-per-node would otherwise add up.
    """
    return [_resolved(group, spec) for group in spec.groups]


def _resolved(group: Group, spec: JobSpec) -> Group:
    own_gpus = group.gres is not None or group.gpus_per_node is not None
    inherited = {
        field: getattr(spec, field)
        for field in Group.model_fields
        if field not in ("name", "nodes") and getattr(group, field) is None
        if not (own_gpus and field in ("gres", "gpus_per_node"))
    }
    added = {field: {**getattr(spec, field), **getattr(group, field)} for field in ("ray_resource", "ray_label")}
    return group.model_copy(update={**inherited, **added})
