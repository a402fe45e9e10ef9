"""Run long-lived programs inside a Ray cluster: plan, place and supervise them, and stop them with their owner.

See docs/reference/placement.md. It needs only Ray and the standard library; planning does not even need Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.placement.errors import OwnedElsewhere, PlacementError, SubprocessError
    from muster.placement.planning.cluster import Cluster, Node
    from muster.placement.planning.flags import engine_kwargs_to_cli_flags
    from muster.placement.planning.planner import FREE, TOTAL, Outcome, PlacedReplica, Plan, plan
    from muster.placement.planning.request import PACK, STRICT_PACK, STRICT_SPREAD, Model, Shape
    from muster.placement.runtime.bundles import get_bundle_node_ip, get_free_port_in_bundle
    from muster.placement.runtime.groups import (
        GroupRequest,
        build_groups,
        build_pg,
        build_replica_pg,
        remove_named_pgs_with_prefix,
    )
    from muster.placement.runtime.health import Probe
    from muster.placement.runtime.managed import ManagedSubprocess
    from muster.placement.runtime.nodes import check_total_gpu_capacity, discover_nodes
    from muster.placement.runtime.orphans import reacquire_detached_actor_handles, sweep_orphan_actors_by_prefix
    from muster.placement.runtime.replica import Event
    from muster.placement.runtime.replicas import Endpoint, Replicas, ReplicaStatus
    from muster.placement.runtime.restart_policy import Policy
    from muster.placement.runtime.shape import ReplicaBundleSpec, plan_replica_bundle_shape
    from muster.placement.runtime.shutdown import graceful_stop_actors

__all__ = [
    "FREE",
    "PACK",
    "STRICT_PACK",
    "STRICT_SPREAD",
    "TOTAL",
    "Cluster",
    "Endpoint",
    "Event",
    "GroupRequest",
    "ManagedSubprocess",
    "Model",
    "Node",
    "Outcome",
    "OwnedElsewhere",
    "PlacedReplica",
    "PlacementError",
    "Plan",
    "Policy",
    "Probe",
    "ReplicaBundleSpec",
    "ReplicaStatus",
    "Replicas",
    "Shape",
    "SubprocessError",
    "build_groups",
    "build_pg",
    "build_replica_pg",
    "check_total_gpu_capacity",
    "discover_nodes",
    "engine_kwargs_to_cli_flags",
    "get_bundle_node_ip",
    "get_free_port_in_bundle",
    "graceful_stop_actors",
    "plan",
    "plan_replica_bundle_shape",
    "reacquire_detached_actor_handles",
    "remove_named_pgs_with_prefix",
    "sweep_orphan_actors_by_prefix",
]

_MODULES = {
    "errors": ("OwnedElsewhere", "PlacementError", "SubprocessError"),
    "planning.cluster": ("Cluster", "Node"),
    "planning.flags": ("engine_kwargs_to_cli_flags",),
    "planning.planner": ("FREE", "TOTAL", "Outcome", "PlacedReplica", "Plan", "plan"),
    "planning.request": ("PACK", "STRICT_PACK", "STRICT_SPREAD", "Model", "Shape"),
    "runtime.shape": ("ReplicaBundleSpec", "plan_replica_bundle_shape"),
    "runtime.bundles": ("get_bundle_node_ip", "get_free_port_in_bundle"),
    "runtime.groups": ("GroupRequest", "build_groups", "build_pg", "build_replica_pg", "remove_named_pgs_with_prefix"),
    "runtime.health": ("Probe",),
    "runtime.managed": ("ManagedSubprocess",),
    "runtime.nodes": ("check_total_gpu_capacity", "discover_nodes"),
    "runtime.orphans": ("reacquire_detached_actor_handles", "sweep_orphan_actors_by_prefix"),
    "runtime.replica": ("Event",),
    "runtime.replicas": ("Endpoint", "ReplicaStatus", "Replicas"),
    "runtime.restart_policy": ("Policy",),
    "runtime.shutdown": ("graceful_stop_actors",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that planning does not import Ray."""
    if name in _MODULE_OF:
        return getattr(import_module(f"muster.placement.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'muster.placement' has no attribute {name!r}")
