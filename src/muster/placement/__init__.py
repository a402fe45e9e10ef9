"""Long-lived programs inside a Ray cluster: planned, placed, watched, and gone with their owner. docs/placement.md.

Needs Ray and the standard library alone; planning needs not even Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.placement.cluster import Cluster, Node
    from muster.placement.planning import FREE, TOTAL, Outcome, PlacedReplica, Plan, plan
    from muster.placement.request import PACK, STRICT_PACK, STRICT_SPREAD, Model, Shape

_ROOMS = {
    "cluster": ("Cluster", "Node"),
    "planning": ("FREE", "TOTAL", "Outcome", "PlacedReplica", "Plan", "plan"),
    "request": ("PACK", "STRICT_PACK", "STRICT_SPREAD", "Model", "Shape"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}
__all__ = [
    "FREE",
    "PACK",
    "STRICT_PACK",
    "STRICT_SPREAD",
    "TOTAL",
    "Cluster",
    "Model",
    "Node",
    "Outcome",
    "PlacedReplica",
    "Plan",
    "Shape",
    "plan",
]


def __getattr__(name: str) -> Any:
    """Loaded on first use: whoever only plans does not pay for Ray."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"muster.placement.{_HOME[name]}"), name)
    raise AttributeError(f"module 'muster.placement' has no attribute {name!r}")
