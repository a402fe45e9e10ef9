"""Groups of unlike nodes, as job.json records them: their node indexes and the resources of a node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

GROUP_LABEL = "muster.io/group"
GROUP_VARIABLE = "MUSTER_GROUP"  # set for processes on the nodes of a group


@dataclass(frozen=True)
class NodeGroup:
    """A number of equal nodes and the resources of each; field names are those of the job file."""

    name: str
    nodes: int
    cpus_per_node: int | None = None
    gpus_per_node: int | None = None
    gres: str | None = None
    ray_resource: Mapping[str, int] = field(default_factory=dict)
    ray_label: Mapping[str, str] = field(default_factory=dict)
    ray: bool = True  # its nodes belong to the Ray cluster of a job with Ray


def groups_of(records: Iterable[Mapping[str, Any]]) -> list[NodeGroup]:
    """Return the groups recorded in job.json; other fields are ignored, and an older Muster recorded fewer."""
    names = NodeGroup.__dataclass_fields__
    return [NodeGroup(**{name: record[name] for name in names if name in record}) for record in records]


def group_of(node_index: int, groups: Sequence[NodeGroup]) -> NodeGroup | None:
    """Return the group of a node; None in a job without groups. Node indexes count through the groups in order.

    >>> group_of(2, [NodeGroup("big", 2), NodeGroup("small", 4)]).name
    'small'
    """
    for group in groups:
        if node_index < group.nodes:
            return group
        node_index -= group.nodes
    return None


def ranks_of(name: str, groups: Sequence[NodeGroup]) -> range:
    """Return the ranks of the nodes of a group, which are their node indexes: a job with groups has no spares.

    >>> ranks_of("small", [NodeGroup("big", 2), NodeGroup("small", 4)])
    range(2, 6)
    """
    first = 0
    for group in groups:
        if group.name == name:
            return range(first, first + group.nodes)
        first += group.nodes
    raise ValueError(f"there is no group {name!r}")


def nodes_without_ray(groups: Sequence[NodeGroup]) -> frozenset[int]:
    """Return the node indexes of the groups that do not belong to the Ray cluster."""
    return frozenset(index for group in groups if not group.ray for index in ranks_of(group.name, groups))


def group_resource(name: str) -> str:
    """Return the Ray resource of which every node of the group has 1; a task that asks for some of it runs there."""
    return f"group_{name}"
