"""The cost of a run: messages and bytes on the wire, and the CPU time of the leader's code."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from muster.election.membership import Membership
from muster.election.quorum_lease import QuorumLease
from muster.lifecycle import events as m
from muster.lifecycle.config import RunConfig, TermStart
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState
from tests.sim.invariants import InvariantChecker
from tests.sim.world import World

FIELDS = {
    "nonce": (),
    "greeting": ("rank", "charter", "at"),
    "beat": ("at", "heard"),
    "answer": ("at", "version", "time"),
    "charter": ("charter", "heard"),
    "welcome": ("cycle",),
    "start": ("logical",),
    "ready": ("cycle",),
    "stop": ("cycle",),
    "gone": ("cycle",),
    "failed": ("phase", "reason", "cycle"),
    "retire": (),
    "bye": ("reason",),
}
MEMBERSHIP_POSITION = {"greeting": 2, "charter": 1}  # in the message


class Meter(InvariantChecker):
    """Checks the invariants and measures."""

    def __init__(self, plan: RunConfig, world: World) -> None:
        super().__init__(plan)
        self._world = world
        self.messages: Counter[str] = Counter()  # by kind
        self.bytes: Counter[str] = Counter()
        self.by_node: Counter[int] = Counter()  # messages that a node sent or received
        self.cpu = 0.0  # seconds, of the state machine and the lease
        self.rounds: list[tuple[int, float, float]] = []  # cycle, virtual seconds and CPU seconds to close it
        self._began = (0.0, 0.0)
        self._sizes: dict[Any, int] = {}

    def protocol(self, plan: RunConfig, now: float, term_start: TermStart) -> RunStateMachine:
        self._began = self._world.now, self.cpu
        start = time.process_time()
        made = MeteredStateMachine(plan, now, term_start)
        self.cpu += time.process_time() - start
        made.meter = self
        return made

    def quorum(self, membership: Membership) -> QuorumLease:
        made = MeteredLease(membership)
        made.meter = self
        return made

    def record_message(self, source: int, target: int, message: tuple[Any, ...]) -> None:
        if source == target or not message:
            return
        kind = message[0]
        self.messages[kind] += 1
        self.bytes[kind] += self._size(message)
        self.by_node[source] += 1
        self.by_node[target] += 1

    def _size(self, message: tuple[Any, ...]) -> int:
        """Return the size of the JSON line. Apart from memberships, messages of one kind differ by few digits."""
        kind = message[0]
        membership = message[MEMBERSHIP_POSITION[kind]] if kind in MEMBERSHIP_POSITION else None
        key = kind if membership is None else (kind, membership.version)
        if key not in self._sizes:
            fields = dict(zip(FIELDS[kind], message[1:], strict=False))
            encoded = {"charter": membership.as_record()} if membership is not None else {}
            self._sizes[key] = len(json.dumps({"type": kind, **fields, **encoded})) + 1
        return self._sizes[key]

    def moved(self, state: RunState, cycle: int) -> None:
        if state is RunState.GATHERING:
            self._began = self._world.now, self.cpu
        elif state is RunState.STARTING:
            since, cpu = self._began
            self.rounds.append((cycle, self._world.now - since, self.cpu - cpu))


class MeteredStateMachine(RunStateMachine):
    """Measures the CPU time of the real class."""

    meter: Meter

    def handle(self, event: m.Event, now: float) -> list[m.Command]:
        start, before = time.process_time(), self.state
        commands = super().handle(event, now)
        self.meter.cpu += time.process_time() - start
        if self.state is not before:
            self.meter.moved(self.state, self.cycle)
        return commands


class MeteredLease(QuorumLease):
    """Measures the CPU time of the real class."""

    meter: Meter

    def answered(self, rank: int, sent: float | None, version: int) -> bool:
        start = time.process_time()
        changed = super().answered(rank, sent, version)
        self.meter.cpu += time.process_time() - start
        return changed
