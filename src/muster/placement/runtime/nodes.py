"""Discover the nodes of the Ray cluster, and check its number of GPUs."""

from __future__ import annotations

import ray
from ray._private.state import available_resources_per_node  # the public one sums over all nodes

from muster.placement.planning.cluster import GPU, Cluster, Node, ignore_ray_head_node
from muster.placement.planning.planner import FREE, TOTAL

HEAD_RESOURCE = "node:__internal_head__"
HOST_LABEL = "muster.io/host"


def discover_nodes(head_node_id: str | None = None) -> Cluster:
    """Return the live nodes with their free resources. Ray's view is a fraction of a second old."""
    free = available_resources_per_node()  # type: ignore[no-untyped-call, unused-ignore]
    nodes = []
    for record in ray.nodes():  # type: ignore[no-untyped-call, unused-ignore]
        if not record["Alive"]:
            continue
        id, total, labels = record["NodeID"], record["Resources"], record.get("Labels") or {}
        nodes.append(
            Node(
                id,
                total,
                free.get(id, {}),
                labels,
                head=id == head_node_id if head_node_id is not None else HEAD_RESOURCE in total,
                name=labels.get(HOST_LABEL) or record["NodeManagerHostname"],
            )
        )
    return Cluster(nodes)


def check_total_gpu_capacity(required_gpus: int, *, ignore_head_node: bool | None = None, against: str = TOTAL) -> None:
    """Raise RuntimeError if the cluster has fewer total or free GPUs than required.

    Enough GPUs may still be distributed in a way that does not fit: only a plan shows that.
    """
    if against not in (FREE, TOTAL):
        raise ValueError(f"capacity is {FREE!r} or {TOTAL!r}, not {against!r}")
    without_head = ignore_ray_head_node() if ignore_head_node is None else ignore_head_node
    nodes = [node for node in discover_nodes().nodes if not (without_head and node.head)]
    count = sum((node.total if against == TOTAL else node.available).get(GPU, 0) for node in nodes)
    if count < required_gpus:
        which = f"the {len(nodes)} nodes besides the head have" if without_head else f"{len(nodes)} nodes have"
        raise RuntimeError(f"{required_gpus} GPUs are required; {which} {count:g} {against}")
