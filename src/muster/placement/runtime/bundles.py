"""The node of a bundle, and ports on it."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from muster.ports.file_leases import lease_port
from muster.ports.ranges import LAST_PORT


def get_bundle_node_ip(pg: PlacementGroup, bundle_index: int) -> str:
    """Return the address of the bundle's node, from Ray's tables: nothing has to run there."""
    node_id = get_bundle_node_id(pg, bundle_index)
    for node in ray.nodes():  # type: ignore[no-untyped-call, unused-ignore]
        if node["NodeID"] == node_id:
            address: str = node["NodeManagerAddress"]
            return address
    raise RuntimeError(f"the node of bundle {bundle_index}, {node_id}, is not in Ray's node table any more")


def get_bundle_node_id(pg: PlacementGroup, bundle_index: int) -> str:
    nodes = placement_group_table(pg)["bundles_to_node_id"]
    if bundle_index not in nodes:
        raise ValueError(f"the placement group has bundles {sorted(nodes)}, not {bundle_index}")
    node_id: str = nodes[bundle_index]
    if not node_id:
        raise RuntimeError(f"bundle {bundle_index} has no node: the placement group is not ready")
    return node_id


def get_free_port_in_bundle(
    pg: PlacementGroup, bundle_index: int, start_port: int, get_next_free_port: bool = True
) -> int:
    """Lease a free port of the bundle's node for a limited time, from `start_port` on (or only that port)."""
    strategy = PlacementGroupSchedulingStrategy(placement_group=pg, placement_group_bundle_index=bundle_index)
    task: Any = ray.remote(num_cpus=0)(_lease_port)
    last = LAST_PORT if get_next_free_port else start_port
    port: int = ray.get(task.options(scheduling_strategy=strategy).remote(start_port, last))
    return port


def _lease_port(first: int, last: int) -> int:
    return lease_port(first, last=last)
