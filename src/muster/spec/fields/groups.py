"""Groups of like nodes in a job whose nodes are not all alike."""

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
    """So many nodes of one kind; they carry the group's name as a label and a resource.

    A field left out is the job's own.
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
    """The job's fields as given, with the number of nodes that its groups add up to where none is given."""
    groups = data.get("groups")
    counts = [_given(group, "nodes") for group in groups] if isinstance(groups, (list, tuple)) else []
    if not counts or "nodes" in data or not all(str(count).isdecimal() for count in counts):
        return dict(data)  # what is wrong with a group, the group's own model says
    return {**data, "nodes": sum(int(str(count)) for count in counts)}


def _given(group: Any, field: str) -> Any:
    return group.get(field) if isinstance(group, Mapping) else getattr(group, field, None)


def problem(groups: Sequence[Group], nodes: int) -> str | None:
    """Why these groups cannot be one job; None when they can."""
    twice = [name for name, times in Counter(group.name for group in groups).items() if times > 1]
    if twice:
        return f"groups: {twice[0]!r} is the name of two groups; give each a name of its own"
    total = sum(group.nodes for group in groups)
    if groups and total != nodes:
        return f"groups: they have {total} nodes in all, but nodes is {nodes}; leave nodes out, or make them agree"
    return None


def resolved(spec: JobSpec) -> list[Group]:
    """The groups with everything that holds for them: their own, else the job's.

    A group's GPUs replace the job's however either is written: --gres and --gpus-per-node would else add up.
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
