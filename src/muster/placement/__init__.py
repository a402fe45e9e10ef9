"""Long-lived programs inside a Ray cluster: planned, placed, watched, and gone with their owner. docs/placement.md.

Needs Ray and the standard library alone; planning needs not even Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.placement.bundles import get_bundle_node_ip, get_free_port_in_bundle
    from muster.placement.cluster import Cluster, Node
    from muster.placement.errors import OwnedElsewhere, PlacementError, SubprocessError
    from muster.placement.flags import engine_kwargs_to_cli_flags
    from muster.placement.groups import (
        GroupRequest,
        build_groups,
        build_pg,
        build_replica_pg,
        remove_named_pgs_with_prefix,
    )
    from muster.placement.managed import ManagedSubprocess
    from muster.placement.nodes import check_total_gpu_capacity, survey
    from muster.placement.planning import FREE, TOTAL, Outcome, PlacedReplica, Plan, plan
    from muster.placement.probe import Probe
    from muster.placement.replica import Event
    from muster.placement.replicas import Endpoint, Replicas, ReplicaStatus
    from muster.placement.request import PACK, STRICT_PACK, STRICT_SPREAD, Model, Shape
    from muster.placement.shape import ReplicaBundleSpec, plan_replica_bundle_shape
    from muster.placement.stopping import graceful_stop_actors
    from muster.placement.supervision import Policy
    from muster.placement.sweep import reacquire_detached_actor_handles, sweep_orphan_actors_by_prefix

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
    "engine_kwargs_to_cli_flags",
    "get_bundle_node_ip",
    "get_free_port_in_bundle",
    "graceful_stop_actors",
    "plan",
    "plan_replica_bundle_shape",
    "reacquire_detached_actor_handles",
    "remove_named_pgs_with_prefix",
    "survey",
    "sweep_orphan_actors_by_prefix",
]

_ROOMS = {
    "bundles": (
        "get_bundle_node_ip",
        "get_free_port_in_bundle",
    ),
    "cluster": (
        "Cluster",
        "Node",
    ),
    "errors": (
        "OwnedElsewhere",
        "PlacementError",
        "SubprocessError",
    ),
    "flags": ("engine_kwargs_to_cli_flags",),
    "groups": (
        "GroupRequest",
        "build_groups",
        "build_pg",
        "build_replica_pg",
        "remove_named_pgs_with_prefix",
    ),
    "managed": ("ManagedSubprocess",),
    "nodes": (
        "check_total_gpu_capacity",
        "survey",
    ),
    "planning": (
        "FREE",
        "TOTAL",
        "Outcome",
        "PlacedReplica",
        "Plan",
        "plan",
    ),
    "probe": ("Probe",),
    "replica": ("Event",),
    "replicas": (
        "Endpoint",
        "ReplicaStatus",
        "Replicas",
    ),
    "request": (
        "PACK",
        "STRICT_PACK",
        "STRICT_SPREAD",
        "Model",
        "Shape",
    ),
    "shape": (
        "ReplicaBundleSpec",
        "plan_replica_bundle_shape",
    ),
    "stopping": ("graceful_stop_actors",),
    "supervision": ("Policy",),
    "sweep": (
        "reacquire_detached_actor_handles",
        "sweep_orphan_actors_by_prefix",
    ),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loaded on first use: whoever only plans does not pay for Ray."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"muster.placement.{_HOME[name]}"), name)
    raise AttributeError(f"module 'muster.placement' has no attribute {name!r}")
