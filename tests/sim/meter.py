"""The cost of a run: messages and bytes on the wire, and the CPU time of the leader's code."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from muster.agent.control.messages import CONTROL_PROTOCOL, MembershipUpdate
from muster.election.leader_lease import LeaderLease, LeaseEffect
from muster.election.membership import Membership
from muster.lifecycle import events as m
from muster.lifecycle.config import RunConfig, TermStart
from muster.lifecycle.state_machine import RunStateMachine, Transition
from muster.lifecycle.states import RunState
from tests.sim.invariants import InvariantChecker
from tests.sim.world import World

FIELDS = {
    "nonce": (),
    "greeting": ("node_index", "membership", "at"),
    "beat": ("at", "heard"),
    "answer": ("at", "version", "time"),
    "membership": ("membership",),
    "welcome": ("cycle",),
    "start": ("rank",),
    "ready": ("cycle",),
    "stop": ("cycle",),
    "gone": ("cycle",),
    "failed": ("phase", "reason", "cycle"),
    "retire": (),
    "bye": ("outcome",),
    "refuse": (),
}
MEMBERSHIP_POSITION = {"greeting": 2, "membership": 1}  # in the message


class Meter(InvariantChecker):
    """Checks the invariants and measures."""

    def __init__(self, plan: RunConfig, world: World) -> None:
        super().__init__(plan)
        self._world = world
        self.messages: Counter[str] = Counter()  # by kind
        self.bytes: Counter[str] = Counter()
        self.by_node: Counter[int] = Counter()  # messages that a node sent or received
        self.cpu = 0.0  # seconds, of the state machine and the lease
        self.cpu_by_event: defaultdict[str, float] = defaultdict(float)
        self.events: Counter[str] = Counter()
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

    def lease(self, protocol: RunStateMachine, membership: Membership, in_use: frozenset[int] | None) -> LeaderLease:
        made = MeteredLease(protocol, membership, in_use)
        made.meter = self
        return made

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Count the CPU time of the block."""
        start = time.process_time()
        yield
        spent = time.process_time() - start
        self.cpu += spent
        self.cpu_by_event[what] += spent
        self.events[what] += 1

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
            encoded = {} if membership is None else CONTROL_PROTOCOL.server.record(MembershipUpdate(membership))
            self._sizes[key] = len(json.dumps({**fields, **encoded, "type": kind}, default=vars)) + 1
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

    def handle(self, event: m.Event, now: float) -> Transition:
        before = self.state
        with self.meter.measure(type(event).__name__):
            transition = super().handle(event, now)
        if self.state is not before:
            self.meter.moved(self.state, self.cycle)
        return transition


class MeteredLease(LeaderLease):
    """Measures the CPU time of the real class."""

    meter: Meter

    def joined(self, node_index: int, sent: float, version: int, now: float) -> list[LeaseEffect]:
        with self.meter.measure("lease: joined"):
            return super().joined(node_index, sent, version, now)

    def answered(self, node_index: int, sent: float | None, version: int, now: float) -> list[LeaseEffect]:
        with self.meter.measure("lease: answered"):
            return super().answered(node_index, sent, version, now)

    def died(self, node_index: int, now: float) -> list[LeaseEffect]:
        with self.meter.measure("lease: died"):
            return super().died(node_index, now)

    def run_changed(self, now: float) -> list[LeaseEffect]:
        with self.meter.measure("lease: run changed"):
            return super().run_changed(now)
