"""The run's cycles as the status shows them: when each began and ended, why, and who was in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.lifecycle.roles import Role
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import ENDED, RunState


class CycleHistory:
    """Looks at the protocol after every event: a cycle's members are to be seen only while it lasts."""

    def __init__(self, protocol: RunStateMachine, before: Sequence[dict[str, Any]] = ()) -> None:
        """`before`: what a leader before this one has published of them."""
        self._protocol = protocol
        self._seen = -1
        self.entries: list[dict[str, Any]] = list(before)[: protocol.cycle]

    def look(self, now: float) -> None:
        protocol = self._protocol
        if not self.entries or self.entries[-1]["cycle"] < protocol.cycle:
            self._end(now, protocol.restart_reason)
            entry: dict[str, Any] = {
                "cycle": protocol.cycle,
                "start": now,
                "end": None,
                "reason": None,
                "members": [],
                "spares": [],
            }
            self.entries.append({**entry, "log_start": None, "progress": False})
        self.entries[-1]["progress"] = protocol.progressed
        if protocol.role_changes != self._seen and protocol.state in (RunState.STARTING, RunState.RUNNING):
            self._seen = protocol.role_changes
            self._note_members()
        if protocol.state in ENDED and protocol.outcome is not None:
            self._end(now, protocol.outcome.end_reason)

    def _end(self, now: float, reason: str) -> None:
        if self.entries and self.entries[-1]["end"] is None:
            self.entries[-1].update(end=now, reason=reason)

    def _note_members(self) -> None:
        """Hosts: the members by their rank in the cycle."""
        nodes = self._protocol.nodes
        members = sorted((node.logical, node.host) for node in nodes if node.logical is not None)
        self.entries[-1]["members"] = [host for _, host in members]
        self.entries[-1]["spares"] = [node.host for node in nodes if node.role is Role.SPARE and node.here]
