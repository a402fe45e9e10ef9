"""Clusters for tests of planning."""

from __future__ import annotations

from muster.placement.planning.cluster import Cluster, Node


def cluster(*gpus: int, cpus: int = 16, **labels: str) -> Cluster:
    """Nodes n0, n1, ... with so many GPUs; n0 is the head."""
    return Cluster(
        Node(f"n{number}", {"CPU": cpus, "GPU": count}, labels=labels, head=number == 0)
        for number, count in enumerate(gpus)
    )
