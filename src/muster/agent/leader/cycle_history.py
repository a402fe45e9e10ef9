"""The run's cycles as the status shows them: start, end, reason and members of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.lifecycle.roles import Role
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import ENDED, RunState


class CycleHistory:
    """Updated after every event: the state machine knows a cycle's members only while the cycle lasts."""

    def __init__(self, machine: RunStateMachine, before: Sequence[dict[str, Any]] = ()) -> None:
        """`before`: the entries that previous leaders have published."""
        self._machine = machine
        self._seen_role_changes = -1
        self.entries: list[dict[str, Any]] = list(before)[: machine.cycle]

    def update(self, now: float) -> None:
        machine = self._machine
        if not self.entries or self.entries[-1]["cycle"] < machine.cycle:
            self._end(now, machine.restart_reason)
            later: dict[str, Any] = {"end": None, "reason": None, "members": [], "spares": [], "log_start": None}
            self.entries.append({"cycle": machine.cycle, "start": now, **later, "progress": False})
        self.entries[-1]["progress"] = machine.progressed
        if machine.role_changes != self._seen_role_changes and machine.state in (RunState.STARTING, RunState.RUNNING):
            self._seen_role_changes = machine.role_changes
            self._record_members()
        if machine.state in ENDED and machine.outcome is not None:
            self._end(now, machine.outcome.end_reason)

    def _end(self, now: float, reason: str) -> None:
        if self.entries and self.entries[-1]["end"] is None:
            self.entries[-1].update(end=now, reason=reason)

    def _record_members(self) -> None:
        """Record the hosts of the members, in the order of their ranks in the cycle, and of the spares."""
        nodes = self._machine.nodes
        members = sorted((node.logical, node.host) for node in nodes if node.logical is not None)
        self.entries[-1]["members"] = [host for _, host in members]
        self.entries[-1]["spares"] = [node.host for node in nodes if node.role is Role.SPARE and node.available]
