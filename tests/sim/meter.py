"""The cost of a run: messages and bytes on the wire, and the calls of its leaders, to be replayed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from muster.agent.control.messages import CONTROL_PROTOCOL, MembershipUpdate
from muster.election.leader_lease import LeaderLease
from muster.election.membership import Membership
from muster.lifecycle.config import RunConfig, TermStart
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState
from muster.lifecycle.transition import Change
from tests.sim.invariants import InvariantChecker
from tests.sim.replay import RecordedLease, RecordedStateMachine, TermRecording
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
        self.recordings: list[TermRecording] = []  # of the leaders, one after the other
        self.rounds: list[float] = []  # virtual seconds until each round closed
        self._began = 0.0  # the current round
        self._sizes: dict[Any, int] = {}

    def protocol(self, plan: RunConfig, now: float, term_start: TermStart) -> RunStateMachine:
        self._began = self._world.now
        made = RecordedStateMachine(plan, now, term_start)
        made.recording = TermRecording(plan, now, term_start)
        self.recordings.append(made.recording)
        return made

    def lease(self, protocol: RunStateMachine, membership: Membership, in_use: frozenset[int] | None) -> LeaderLease:
        assert isinstance(protocol, RecordedStateMachine)
        made = RecordedLease(protocol, membership, in_use)
        made.recording = protocol.recording
        made.recording.first = membership, in_use
        return made

    def check(self, term: int, protocol: RunStateMachine, moves: Sequence[Change]) -> None:
        super().check(term, protocol, moves)
        if RunState.GATHERING in moves:
            self._began = self._world.now
        if RunState.STARTING in moves:
            self.rounds.append(self._world.now - self._began)

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
