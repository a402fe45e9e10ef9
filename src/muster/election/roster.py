"""Who is to count, as the protocol goes on."""

from __future__ import annotations

from muster.lifecycle.bring_up import Rounds
from muster.lifecycle.roles import Role, RunNode


class Roster:
    """The nodes of a protocol that have joined and are neither lost, gone nor excluded; and the excluded ones."""

    def __init__(self, protocol: Rounds) -> None:
        self._protocol = protocol
        self._seen: tuple[int, int] | None = None
        self.there: set[int] = set()
        self.excluded: set[int] = set()

    def changed(self) -> bool:
        """Whether there may be something new to propose since it was asked last."""
        seen = self._protocol.membership, self._protocol.cycle
        if seen == self._seen:
            return False
        self._seen = seen
        self.there = {node.rank for node in self._protocol.nodes if counts(node)}
        self.excluded = {node.rank for node in self._protocol.nodes if node.role is Role.EXCLUDED}
        return True


def counts(node: RunNode) -> bool:
    return node.role is not Role.EXCLUDED and node.held
