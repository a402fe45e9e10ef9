"""The times of each cycle that its critical path is computed from: when nodes arrived, started, were ready. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from muster.views.json_values import as_int, as_text
from muster.views.record import RecordedEvent
from muster.views.service_gate import OPEN, PASSED_STATES, Gate

PRESENT_STATES = ("arrived", "starting", "ready")
LEFT_STATES = ("failed", "lost", "gone")


@dataclass
class CycleEvents:
    """The times of one cycle up to its driver's start, without nodes that left before."""

    cycle: int
    start: float
    closed: float | None = None  # when the membership was closed
    driver_start: float | None = None
    driver_end: float | None = None
    stopping: dict[int, float] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)
    starting: dict[int, float] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)
    head: int | None = None  # the first node that started Ray
    hosts: dict[int, str] = field(default_factory=dict)
    gate: Gate = OPEN
    ranked: dict[int, float] = field(default_factory=dict)  # when a node got its rank, and with it its services
    awaits: dict[int, tuple[str, ...]] = field(default_factory=dict)  # services, by node, that the driver waits for
    served: dict[tuple[str, int], float] = field(default_factory=dict)  # when a service was ready, by node
    given_up: float | None = None  # when the run ended before it had a driver
    end_reason: str = ""  # why the next cycle followed
    _left: int | None = None  # the node that left last, until it is forgotten

    def add(self, event: RecordedEvent) -> None:
        if self.driver_start is not None:
            self.driver_end = event.time if event.name == "driver_end" else self.driver_end
            return  # later events are not on the path to the driver
        if event.name == "run" and event.fields.get("state") == "finishing":
            self.given_up = event.time if self.given_up is None else self.given_up
        if self.given_up is not None:
            return  # the path ends with what the run waited for, including the node whose loss ended it
        self.forget_left_node()
        if event.name == "driver_start":
            self.driver_start = event.time
        elif event.name == "run" and event.fields.get("state") == "starting":
            self.closed = event.time
        elif event.name == "node" and event.node_index is not None:
            self._add_node_event(event, event.node_index)
        elif event.name == "service" and event.node_index is not None:
            self._add_service_event(event, event.node_index)

    def _add_node_event(self, event: RecordedEvent, node_index: int) -> None:
        state = as_text(event.fields.get("state"))
        self.hosts[node_index] = as_text(event.fields.get("host"))
        known = {"stopping": self.stopping, "arrived": self.arrived, "starting": self.starting, "ready": self.ready}
        if state in known and node_index not in known[state]:  # a change of role repeats the state
            known[state][node_index] = event.time
        if state == "starting" and self.head is None:
            self.head = node_index
        if state in PRESENT_STATES and event.fields.get("role") == "active":
            self.ranked.setdefault(node_index, event.time)
            self.awaits[node_index] = self.gate.services_on(as_int(event.fields.get("logical_rank")))
        if state in LEFT_STATES:
            self._left = node_index

    def _add_service_event(self, event: RecordedEvent, node_index: int) -> None:
        name, state = as_text(event.fields.get("service")), as_text(event.fields.get("state"))
        before = self.served.pop((name, node_index), event.time)
        if state in PASSED_STATES:
            self.served[name, node_index] = event.time if state == "ready" else before

    def forget_left_node(self) -> None:
        """Remove the node that left last, unless the run ended with it."""
        node_index, self._left = self._left, None
        if node_index is not None and self.given_up is None:
            for times in (self.stopping, self.arrived, self.starting, self.ready, self.ranked):
                times.pop(node_index, None)
            for name in self.awaits.pop(node_index, ()):
                self.served.pop((name, node_index), None)

    def settled(self) -> CycleEvents:
        """Return the cycle without the node that left last, for a path; events can still be added to this one."""
        if self._left is None:
            return self
        copied = replace(self)
        for name in ("stopping", "arrived", "starting", "ready", "ranked", "awaits", "served"):
            setattr(copied, name, dict(getattr(self, name)))
        copied.forget_left_node()
        return copied


class RunCycleEvents:
    """Collect the cycles of an attempt from its events."""

    def __init__(self, began: float, gate: Gate = OPEN) -> None:
        self._began, self._gate = began, gate
        self._cycles: list[CycleEvents] = []
        self._restarting: float | None = None

    def add(self, event: RecordedEvent) -> None:
        if event.name == "run" and event.fields.get("state") == "restarting":
            self._restarting = event.time  # the next cycle begins here, whichever cycle the event names
            if self._cycles:
                self._cycles[-1].end_reason = as_text(event.fields.get("reason"))
            return
        if not self._cycles or event.cycle > self._cycles[-1].cycle:
            start = self._restarting if self._restarting is not None else event.time if self._cycles else self._began
            cycle = CycleEvents(event.cycle, start, gate=self._gate)
            cycle.hosts.update(self._cycles[-1].hosts if self._cycles else {})
            self._cycles.append(cycle)
            self._restarting = None
        self._cycles[-1].add(event)

    def cycles(self, end: float) -> list[tuple[CycleEvents, float]]:
        """Return each cycle and its end, the start of the next; the first cycle exists even without events."""
        cycles = [cycle.settled() for cycle in self._cycles] or [CycleEvents(0, self._began)]
        return list(zip(cycles, [*(cycle.start for cycle in cycles[1:]), end], strict=True))
