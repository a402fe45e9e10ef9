"""Start, supervision and end of a Ray head or worker on one node. Standard library only."""

from muster.agent.ray.node import RayNode, RayPaths, RayStartRequest

__all__ = ["RayNode", "RayPaths", "RayStartRequest"]
