"""The moments of each cycle that the way to its driver is made of: who arrived, started and was ready when. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.views.record import Happening, whole, words
from muster.views.service_gate import HOLDS_NOBODY, OPEN, Gate

HERE = ("arrived", "starting", "ready")
LEFT = ("failed", "lost", "gone")


@dataclass
class CycleEvents:
    """One cycle, up to its driver. A node that left is as if it had never been there."""

    cycle: int
    start: float
    closed: float | None = None  # when the round closed
    driver_start: float | None = None
    driver_end: float | None = None
    stopping: dict[int, float] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)
    starting: dict[int, float] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)
    head: int | None = None  # the first that was told to start Ray
    hosts: dict[int, str] = field(default_factory=dict)
    gate: Gate = OPEN
    ranked: dict[int, float] = field(default_factory=dict)  # when a node got its rank, and with it its services
    awaits: dict[int, tuple[str, ...]] = field(default_factory=dict)  # services, by node, that the driver waits for
    served: dict[tuple[str, int], float] = field(default_factory=dict)  # when a service was ready, by node
    given_up: float | None = None  # when the run was ended before it had a driver
    _left: int | None = None

    def note(self, event: Happening) -> None:
        if self.driver_start is not None:
            self.driver_end = event.time if event.name == "driver_end" else self.driver_end
            return  # the driver runs: what comes now did not lead to it
        if event.name == "run" and event.fields.get("state") == "finishing":
            self.given_up = event.time if self.given_up is None else self.given_up
        if self.given_up is not None:
            return  # what was waited for by then is what there is to tell: also for the node whose end it was
        self.forget()
        if event.name == "driver_start":
            self.driver_start = event.time
        elif event.name == "run" and event.fields.get("state") == "starting":
            self.closed = event.time
        elif event.name == "node" and event.rank is not None:
            self._note_node(event, event.rank)
        elif event.name == "service" and event.rank is not None:
            self._note_service(event, event.rank)

    def _note_node(self, event: Happening, rank: int) -> None:
        state = words(event.fields.get("state"))
        self.hosts[rank] = words(event.fields.get("host"))
        known = {"stopping": self.stopping, "arrived": self.arrived, "starting": self.starting, "ready": self.ready}
        if state in known and rank not in known[state]:  # a change of role tells the state again
            known[state][rank] = event.time
        if state == "starting" and self.head is None:
            self.head = rank
        if state in HERE and event.fields.get("role") == "active":
            self.ranked.setdefault(rank, event.time)
            self.awaits[rank] = self.gate.on(whole(event.fields.get("logical_rank")))
        if state in LEFT:
            self._left = rank

    def _note_service(self, event: Happening, rank: int) -> None:
        name, state = words(event.fields.get("service")), words(event.fields.get("state"))
        before = self.served.pop((name, rank), event.time)
        if state in HOLDS_NOBODY:
            self.served[name, rank] = event.time if state == "ready" else before

    def forget(self) -> None:
        """The node that left last, unless the run ended with it."""
        rank, self._left = self._left, None
        if rank is not None and self.given_up is None:
            for moments in (self.stopping, self.arrived, self.starting, self.ready, self.ranked):
                moments.pop(rank, None)
            for name in self.awaits.pop(rank, ()):
                self.served.pop((name, rank), None)


class RunCycleEvents:
    """All cycles of an attempt, as the events tell them."""

    def __init__(self, began: float, gate: Gate = OPEN) -> None:
        self._began, self._gate = began, gate
        self._cycles: list[CycleEvents] = []
        self._restarting: float | None = None

    def note(self, event: Happening) -> None:
        if event.name == "run" and event.fields.get("state") == "restarting":
            self._restarting = event.time  # where the next cycle begins, whichever it was told under
            return
        if not self._cycles or event.cycle > self._cycles[-1].cycle:
            start = self._restarting if self._restarting is not None else event.time if self._cycles else self._began
            own = CycleEvents(event.cycle, start, gate=self._gate)
            own.hosts.update(self._cycles[-1].hosts if self._cycles else {})
            self._cycles.append(own)
            self._restarting = None
        self._cycles[-1].note(event)

    def cycles(self, end: float) -> list[tuple[CycleEvents, float]]:
        """Each with its end: where the next one begins. The first is there before anything is told of it."""
        cycles = self._cycles or [CycleEvents(0, self._began)]
        for cycle in cycles:
            cycle.forget()
        return list(zip(cycles, [*(cycle.start for cycle in cycles[1:]), end], strict=True))
