"""Who is to count, kept up to date from what the protocol does: one look for each move, not at all nodes."""

from __future__ import annotations

from muster.rendezvous.roles import Node, Role
from muster.rendezvous.rounds import Rounds
from muster.rendezvous.states import DEPARTED, NodeState


class Roster:
    """The nodes of a protocol that have joined and are neither lost, gone nor excluded; and the excluded ones."""

    def __init__(self, protocol: Rounds) -> None:
        self._protocol = protocol
        self.there = {node.rank for node in protocol.nodes if _counts(node)}
        self.excluded = {node.rank for node in protocol.nodes if node.role is Role.EXCLUDED}
        self._cycle = -1
        self._seen = 0

    def changed(self) -> bool:
        """Whether there is something new to propose since it was asked last."""
        moves, cycle = self._protocol.moves, self._protocol.cycle
        before, self._cycle = self._cycle, cycle
        changed = cycle != before
        for move in moves[self._seen :]:
            if isinstance(move, Node):
                changed |= _put(self.there, move.rank, _counts(move))
                changed |= _put(self.excluded, move.rank, move.role is Role.EXCLUDED)
        self._seen = len(moves)
        return changed


def _counts(node: Node) -> bool:
    return node.role is not Role.EXCLUDED and node.state not in DEPARTED and node.state is not NodeState.EXPECTED


def _put(ranks: set[int], rank: int, belongs: bool) -> bool:
    """Whether that changes anything."""
    if belongs == (rank in ranks):
        return False
    (ranks.add if belongs else ranks.remove)(rank)
    return True
