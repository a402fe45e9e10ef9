"""How a Ray head or worker is started, watched and ended on one node. Standard library only."""

from muster.agent.ray.node import RayNode, RayPaths, StartOrder

__all__ = ["RayNode", "RayPaths", "StartOrder"]
