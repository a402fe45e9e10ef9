"""How a Ray head or worker is started, watched and ended on one node. Standard library only."""

from muster.agent.ray.node import Order, RayNode, RayPaths

__all__ = ["Order", "RayNode", "RayPaths"]
