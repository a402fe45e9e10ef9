"""Define groups: the sets of identical nodes in a job whose nodes differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from muster.spec import validators
from muster.spec.types import Count, CountOrZero, Line

if TYPE_CHECKING:
    from muster.spec.model import JobSpec


class Group(BaseModel):
    """A number of identical nodes. The group's name is a label and a Ray resource of these nodes.

    A field that is not set has the job's value.
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


def with_total(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's fields as given; `nodes`, if not given, is the sum of the groups' nodes."""
    groups = data.get("groups")
    counts = [_given(group, "nodes") for group in groups] if isinstance(groups, (list, tuple)) else []
    if not counts or "nodes" in data or not all(str(count).isdecimal() for count in counts):
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
    return group.model_copy(update=inherited)
