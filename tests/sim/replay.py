"""The CPU time of a leader: its calls are recorded in a simulation and replayed without the simulator.

In a simulation of thousands of nodes the simulator's own work fills the caches and causes most garbage collections, so
the time of a call measured there is mostly not the leader's.
"""

from __future__ import annotations

import gc
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from muster.election.leader_lease import LeaderLease, LeaseEffect
from muster.election.membership import Membership
from muster.lifecycle.config import RunConfig, TermStart
from muster.lifecycle.events import Event
from muster.lifecycle.state_machine import RunStateMachine, Transition
from muster.lifecycle.states import RunState

LEASE_CALLS = ("joined", "answered", "died", "run_changed", "cycle_wanted", "outcome_wanted", "tick", "expired")


@dataclass
class TermRecording:
    """The calls of one leader's state machine and lease, in order: the name of the method and its arguments."""

    plan: RunConfig
    began: float
    term_start: TermStart
    first: tuple[Membership, frozenset[int] | None] | None = None  # of the lease
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)


class RecordedStateMachine(RunStateMachine):
    """Records the calls of the real class."""

    recording: TermRecording

    def start(self, now: float) -> Transition:
        self.recording.calls.append(("start", (now,)))
        return super().start(now)

    def handle(self, event: Event, now: float) -> Transition:
        self.recording.calls.append(("handle", (event, now)))
        return super().handle(event, now)


def _recorded(name: str) -> Callable[..., list[LeaseEffect]]:
    real = getattr(LeaderLease, name)

    def call(self: RecordedLease, *args: Any) -> list[LeaseEffect]:
        self.recording.calls.append((name, args))
        effects: list[LeaseEffect] = real(self, *args)
        return effects

    return call


class RecordedLease(LeaderLease):
    """Records the calls of the real class."""

    recording: TermRecording


for _name in LEASE_CALLS:
    setattr(RecordedLease, _name, _recorded(_name))


class LeaderCost:
    """The CPU seconds of all replayed calls: in total, by event, and until each round closed."""

    def __init__(self) -> None:
        self.cpu = 0.0
        self.cpu_by_event: defaultdict[str, float] = defaultdict(float)
        self.events: Counter[str] = Counter()
        self.rounds: list[tuple[int, float]] = []  # cycle, CPU seconds
        self._round_began = 0.0

    def add(self, what: str, seconds: float) -> None:
        self.cpu += seconds
        self.cpu_by_event[what] += seconds
        self.events[what] += 1

    def replay(self, recording: TermRecording) -> None:
        """Make the calls of one term again, on new objects."""
        self._round_began, start = self.cpu, time.process_time()
        machine = RunStateMachine(recording.plan, recording.began, recording.term_start)
        assert recording.first is not None
        lease = LeaderLease(machine, *recording.first)
        self.add("begin", time.process_time() - start)
        methods = {name: getattr(lease, name) for name in LEASE_CALLS}
        methods.update(start=machine.start, handle=machine.handle)
        for name, args in recording.calls:
            method = methods[name]
            start = time.process_time()
            result = method(*args)
            spent = time.process_time() - start
            self.add(_label(name, args), spent)
            if isinstance(result, Transition):
                self._note_rounds(result, machine.cycle)

    def _note_rounds(self, transition: Transition, cycle: int) -> None:
        if RunState.GATHERING in transition.changes:
            self._round_began = self.cpu
        if RunState.STARTING in transition.changes:
            self.rounds.append((cycle, self.cpu - self._round_began))


def _label(name: str, args: tuple[Any, ...]) -> str:
    if name == "handle":
        return type(args[0]).__name__
    return f"lease: {name}" if name in LEASE_CALLS else name


def replay(recordings: Iterable[TermRecording]) -> LeaderCost:
    """Return the cost of all terms. What the simulation has left in memory causes no garbage collection here."""
    cost = LeaderCost()
    gc.collect()
    gc.freeze()
    try:
        for recording in recordings:
            cost.replay(recording)
    finally:
        gc.unfreeze()
    return cost
