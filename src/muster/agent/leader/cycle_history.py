"""The run's cycles as the status shows them: start, end, reason and members of each of the last ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import ENDED, RunState
from muster.lifecycle.transition import Change

# The status is written several times a second, so its size must not grow with the number of cycles: a run of 1,000
# nodes and 1,000 cycles would have 13 MB. Events have the changes of all cycles.
MAX_CYCLES = 20
MIN_CYCLES = 2  # kept in any case: the current cycle and the one before
MAX_HOSTS = 20_000  # named in all cycles together


class CycleHistory:
    """Updated after every event: the state machine knows a cycle's members only while the cycle lasts."""

    def __init__(
        self, machine: RunStateMachine, before: Sequence[dict[str, Any]] = (), dropped: int = 0, streak: int = 0
    ) -> None:
        """`before`, `dropped` and `streak`: the values that previous leaders have published."""
        self._machine = machine
        self._members: dict[int, tuple[int, str]] = {}  # rank and host of active nodes, by node index
        self._spares: dict[int, str] = {}
        self._members_cycle = -1  # the cycle of these
        self._stale = False  # the last entry does not list them yet
        self._entries = [dict(entry) for entry in before if entry.get("cycle", 0) < machine.cycle]
        self.dropped = dropped  # number of cycles before those in `entries`
        self.dropped_without_progress = streak  # how many of the last dropped ones made no progress, consecutively

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The last cycles, oldest first."""
        self._list_members()
        return self._entries

    def update(self, now: float, changes: Iterable[Change] = ()) -> None:
        """Record what has changed; `changes`: those of the transition."""
        machine = self._machine
        if not self._entries or self._entries[-1]["cycle"] < machine.cycle:
            self._list_members()
            self._end(now, machine.restart_reason)
            later: dict[str, Any] = {"end": None, "reason": None, "members": [], "spares": [], "log_start": None}
            self._entries.append({"cycle": machine.cycle, "start": now, **later, "progress": False})
            self._drop()
        self._entries[-1]["progress"] = machine.progressed
        if machine.state in (RunState.STARTING, RunState.RUNNING):
            if self._members_cycle != machine.cycle:
                self._members_cycle, self._members, self._spares = machine.cycle, {}, {}
                changes = machine.nodes
            for change in changes:
                if isinstance(change, RunNode):
                    self._record_node(change)
        if machine.state in ENDED and machine.outcome is not None:
            self._end(now, machine.outcome.end_reason)

    def _end(self, now: float, reason: str) -> None:
        if self._entries and self._entries[-1]["end"] is None:
            self._entries[-1].update(end=now, reason=reason)

    def _record_node(self, node: RunNode) -> None:
        self._stale = True
        self._members.pop(node.node_index, None)
        self._spares.pop(node.node_index, None)
        if node.rank is not None:
            self._members[node.node_index] = node.rank, node.host
        elif node.role is Role.SPARE and node.available:
            self._spares[node.node_index] = node.host

    def _list_members(self) -> None:
        """List the hosts of the members, in the order of their ranks, and of the spares. Not at each of 500 losses."""
        if self._stale:
            self._stale = False
            members = [host for _, host in sorted(self._members.values())]
            self._entries[-1].update(members=members, spares=[host for _, host in sorted(self._spares.items())])

    def _drop(self) -> None:
        """Drop the oldest cycles beyond the limits."""
        hosts = sum(_host_count(entry) for entry in self._entries)
        while len(self._entries) > MAX_CYCLES or (hosts > MAX_HOSTS and len(self._entries) > MIN_CYCLES):
            dropped = self._entries.pop(0)
            hosts -= _host_count(dropped)
            self.dropped += 1
            self.dropped_without_progress = 0 if dropped.get("progress") else self.dropped_without_progress + 1


def _host_count(entry: dict[str, Any]) -> int:
    return len(entry.get("members") or ()) + len(entry.get("spares") or ())
