"""The roster that a leader proposes, derived from the state machine of its run."""

from __future__ import annotations

from muster.lifecycle.bring_up import BringUp
from muster.lifecycle.roles import Role


class Roster:
    """The nodes that have joined, have not left and are not excluded; and the excluded nodes."""

    def __init__(self, machine: BringUp) -> None:
        self._machine = machine
        self._seen: tuple[int, int] | None = None
        self.members: set[int] = set()
        self.excluded: set[int] = set()

    def update(self) -> bool:
        """Update both sets; return False if nothing changed since the last call."""
        seen = self._machine.membership_version, self._machine.cycle
        if seen == self._seen:
            return False
        self._seen = seen
        nodes = self._machine.nodes
        self.members = {node.rank for node in nodes if node.joined and node.role is not Role.EXCLUDED}
        self.excluded = {node.rank for node in nodes if node.role is Role.EXCLUDED}
        return True
