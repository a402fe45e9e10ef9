"""The round of a cycle: when it closes, its number of active nodes, and its open ranks. No I/O, no clock.

A job of MIN to MAX nodes has as many active nodes as arrive. A node arrives late if it missed a round.

pending nodes                      MAX nodes are available   fewer, but MIN           fewer than MIN
none                               the round closes          the round closes         the run ends
some, all of which missed a round  after the last call       the round closes         it waits until the deadline
others                             after the last call       at the deadline          it waits until the deadline

A cycle that began with fewer than MAX nodes has open ranks. While the driver runs, late nodes get them, and take part
as workers of the running Ray cluster. In a gang, whose size is fixed, late nodes are spares until the next cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from muster.lifecycle import roles
from muster.lifecycle.config import RunConfig
from muster.lifecycle.node_sets import NodeSets
from muster.lifecycle.roles import RunNode
from muster.lifecycle.states import NodeState


class GatheringRound:
    """Decides when the current round closes, and which ranks are open after that."""

    def __init__(self, config: RunConfig, sets: NodeSets, leader: int) -> None:
        self._config, self._sets, self._leader = config, sets, leader
        self._last_call: float | None = None  # time at which a round with all its nodes stops waiting for spares
        self.size = config.active_nodes  # of the last round: the ranks below it were assigned when it closed
        self._open: list[int] = []  # a heap of ranks that no node has

    def begin(self) -> None:
        """Begin the round of the next cycle."""
        self._last_call, self._open = None, []

    def may_close(self, now: float, deadline: float) -> bool:
        """Return whether enough nodes are available, and the pending ones are not awaited any longer."""
        if not (self._sets.enough_available(self._leader) and self._half_available()):
            return False
        if not self._sets.pending or now >= deadline:
            return True
        if len(self._sets.available) < self._config.active_nodes:
            return not self._sets.awaited
        self._last_call = now + self._config.last_call if self._last_call is None else self._last_call
        return now >= self._last_call

    def _half_available(self) -> bool:
        """Return whether no more nodes are pending than available: more could elect another leader."""
        return len(self._sets.available) >= self._sets.pending or not self._config.failover

    def close(self, nodes: Sequence[RunNode]) -> list[RunNode]:
        """Close the round and return the nodes with their roles."""
        assigned = roles.assign_roles(nodes, self._config, self._leader)
        self.size = min(len(self._sets.available), self._config.active_nodes)
        self._open = list(range(self.size, self._config.active_nodes))
        return assigned

    def take_rank(self) -> tuple[int, int] | None:
        """Return a spare and the open rank that it gets; None if there is no spare, no open rank, or a gang runs."""
        spare = self._sets.spares.first()
        return None if spare is None or self._config.gang or not self._open else (spare, heappop(self._open))

    def is_joining(self, node: RunNode) -> bool:
        """Return whether the node has a rank that was open, but is not ready: the driver does not use it yet."""
        return node.rank is not None and node.rank >= self.size and node.state is not NodeState.READY

    def return_rank(self, rank: int) -> None:
        """Open the rank of a joining node that was lost or has failed."""
        heappush(self._open, rank)
