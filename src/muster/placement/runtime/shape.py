"""The bundle shape of one replica: one node if it fits, else an equal split over the fewest nodes.

It uses only the total GPUs of nodes and does not choose nodes: for drivers that build placement groups one by one and
leave the rest to Ray. `planner.plan` does more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.placement.planning.cluster import (
    CPU,
    GPU,
    IGNORE_HEAD_VARIABLE,
    WORKER_NODE_LABEL,
    Cluster,
    Node,
    ignore_ray_head_node,
)
from muster.placement.planning.request import STRICT_PACK, STRICT_SPREAD


@dataclass
class ReplicaBundleSpec:
    """Bundles and strategy of one replica."""

    bundles: list[dict[str, float]]
    strategy: str
    nnodes: int  # as many as there are bundles
    per_node_gpus: int
    bundle_label_selector: list[dict[str, str]] | None = None  # None if no node is excluded

    @property
    def is_multi_node(self) -> bool:
        """Return whether the replica needs more than one node."""
        return self.nnodes > 1

    @property
    def total_gpus(self) -> int:
        """Return the GPUs of all bundles together."""
        return self.nnodes * self.per_node_gpus


def plan_replica_bundle_shape(
    tp_size: int,
    *,
    head_node_id: str | None = None,
    ignore_head: bool | None = None,
    _topology: Sequence[Mapping[str, Any]] | None = None,
) -> ReplicaBundleSpec:
    """Return the shape of a replica of `tp_size` GPUs on this Ray cluster; RuntimeError if there is none.

    `ignore_head` defaults to the environment's; `_topology` (node_id, num_gpus, is_head) replaces the cluster's nodes.
    """
    if tp_size < 1:
        raise ValueError(f"tp_size must be >= 1, got {tp_size}")
    cluster = _discovered(head_node_id) if _topology is None else _from_topology(_topology)
    return shape_for(cluster, tp_size, ignore_ray_head_node() if ignore_head is None else ignore_head)


def shape_for(cluster: Cluster, gpus: int, ignore_head: bool) -> ReplicaBundleSpec:
    """Return the shape with the fewest nodes, all with the same number of GPUs."""
    sizes = [int(node.total.get(GPU, 0)) for node in cluster.nodes if not (ignore_head and node.head)]
    sizes = [size for size in sizes if size]
    if not any(node.total.get(GPU, 0) for node in cluster.nodes):
        raise RuntimeError(f"No GPU nodes: none of the cluster's {len(cluster.nodes)} nodes has a GPU")
    if not sizes:
        raise RuntimeError(f"{IGNORE_HEAD_VARIABLE} excludes the head, and no other node has a GPU")
    for count in range(1, len(sizes) + 1):
        each = gpus // count
        if gpus % count == 0 and sum(size >= each for size in sizes) >= count:
            selector = cluster.worker_selector() if ignore_head else None
            return ReplicaBundleSpec(
                bundles=[{CPU: 1, GPU: each} for _ in range(count)],
                strategy=STRICT_PACK if count == 1 else STRICT_SPREAD,
                nnodes=count,
                per_node_gpus=each,
                bundle_label_selector=[dict(selector) for _ in range(count)] if selector is not None else None,
            )
    have = ", ".join(str(size) for size in sorted(sizes, reverse=True)[:16])
    raise RuntimeError(
        f"TP={gpus} has no even split over these nodes: every node must have the same number of its GPUs, "
        f"and {len(sizes)} nodes have {have}"
    )


def _discovered(head_node_id: str | None) -> Cluster:
    from muster.placement.runtime.nodes import discover_nodes  # imports Ray, which planning does not need

    return discover_nodes(head_node_id)


def _from_topology(topology: Sequence[Mapping[str, Any]]) -> Cluster:
    return Cluster(
        Node(node["node_id"], {GPU: node["num_gpus"]}, labels=WORKER_NODE_LABEL, head=node["is_head"])
        for node in topology
    )
