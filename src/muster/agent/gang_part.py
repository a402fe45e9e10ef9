"""One node's part in a gang: a value that the leader sends to the node. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GangPart:
    """One node's part in a gang, as the leader sends it; the node reads the rest from the job's record."""

    cycle: int
    node: int  # the node's rank in the cycle; the leader's is 0
    nodes: int
    procs: int  # on each node
    address: str  # of rank 0
    port: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.procs

    def rank(self, local: int) -> int:
        """Return the global rank of the process with this local rank.

        >>> GangPart(cycle=0, node=2, nodes=4, procs=8, address="", port=0).rank(1)
        17
        """
        return self.node * self.procs + local
