"""Groups of unlike nodes: which ranks are in which, and what a node of each has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GROUP_LABEL = "muster.io/group"
GROUP_VARIABLE = "MUSTER_GROUP"  # of the processes on a group's nodes


@dataclass(frozen=True)
class NodeGroup:
    """So many nodes, each with this much; field names are the job file's."""

    name: str
    nodes: int
    cpus_per_node: int | None = None
    gpus_per_node: int | None = None
    gres: str | None = None


def groups_of(records: Iterable[Mapping[str, Any]]) -> list[NodeGroup]:
    """The groups as the run's job.json has them."""
    return [NodeGroup(**{name: record[name] for name in NodeGroup.__dataclass_fields__}) for record in records]


def group_of(rank: int, groups: Sequence[NodeGroup]) -> NodeGroup | None:
    """Ranks count through the groups in order; None in a job without groups.

    >>> group_of(2, [Group("big", 2), Group("small", 4)]).name
    'small'
    """
    for group in groups:
        if rank < group.nodes:
            return group
        rank -= group.nodes
    return None


def group_resource(name: str) -> str:
    """The Ray resource of which every node of the group has 1: ask for a little of it to run there."""
    return f"group_{name}"
