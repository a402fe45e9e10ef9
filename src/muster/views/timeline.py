"""The timeline of a run: for every attempt and node the spans of its phases, without gaps. Pure.

Each event changes the state of one node, of the run or of the driver; every node whose phase changes with it begins a
new span. So the spans of a node add up to the wall time of its attempt by construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muster.views.critical_path import PathStep, critical_path
from muster.views.cycle_events import CycleEvents, RunCycleEvents
from muster.views.json_values import as_dicts, as_int, as_text, as_time
from muster.views.phases import Phase, phase_of
from muster.views.record import AttemptRecord, RecordedEvent, RunRecord
from muster.views.service_gate import PASSED_STATES, Gate, gate_of


@dataclass(frozen=True)
class Span:
    """A node was in this phase from `start` to `end`, in this cycle."""

    phase: Phase
    start: float
    end: float
    cycle: int

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class NodeTimeline:
    """One node of an attempt, with its last role, state and phase (which may have lasted no time) and its spans."""

    node_index: int
    host: str
    role: str
    state: str
    phase: Phase
    spans: tuple[Span, ...]

    def seconds(self, phase: Phase, cycle: int | None = None) -> float:
        """Return the seconds spent in this phase, in this cycle or in all."""
        return sum(span.seconds for span in self.spans if span.phase is phase and cycle in (None, span.cycle))


@dataclass(frozen=True)
class Mark:
    """An event that the timeline marks: a cycle begins, a node is lost, the driver starts or ends."""

    time: float
    kind: str
    node_index: int | None
    text: str


@dataclass(frozen=True)
class Cycle:
    """One cycle; `path` is its critical path to the driver, or to the current wait."""

    number: int
    start: float
    driver_start: float | None
    driver_end: float | None
    end: float
    reason: str  # why it ended
    path: tuple[PathStep, ...]


@dataclass(frozen=True)
class AttemptTimeline:
    """One attempt; `began` is the job's start, before which it was queued."""

    number: int
    start: float
    began: float
    end: float
    nodes: tuple[NodeTimeline, ...]
    marks: tuple[Mark, ...]
    cycles: tuple[Cycle, ...]


@dataclass(frozen=True)
class Timeline:
    """The timeline of a run from its request to its end, or to now."""

    start: float
    end: float
    attempts: tuple[AttemptTimeline, ...]

    @property
    def wall(self) -> float:
        return self.end - self.start


def build_timeline(run: RunRecord) -> Timeline:
    """Return the timeline of all attempts, each beginning where the one before ended."""
    return TimelineBuilder().build(run)


class TimelineBuilder:
    """Builds the timeline of one run repeatedly as it grows: later builds process only the new events."""

    def __init__(self) -> None:
        self._attempts: dict[int, _AttemptBuilder] = {}

    def build(self, run: RunRecord) -> Timeline:
        """Return the timeline of all attempts, each beginning where the one before ended."""
        attempts: list[AttemptTimeline] = []
        start, queue = run.asked, run.submitted
        for record, following in _with_next(run.attempts):
            end = _end_of(record, following, run)
            attempt = self._build_attempt(run, record, start, queue, max(end, start))
            attempts.append(attempt)
            start = queue = attempt.end
        end = start if attempts and not run.live else max(start, run.now)
        if not attempts or (run.live and run.attempts[-1].ended is not None):  # still, or again, in the queue
            waiting = AttemptRecord(len(attempts))
            attempts.append(self._build_attempt(run, waiting, start, min(max(queue, start), end), end))
        return Timeline(run.asked, end, tuple(attempts))

    def _build_attempt(
        self, run: RunRecord, record: AttemptRecord, start: float, queued: float, end: float
    ) -> AttemptTimeline:
        began = min(max(record.began if record.began is not None else end, start), end)
        origin = _Origin(
            start,
            min(max(queued, start), began),
            began,
            record.began is not None,
            tuple(_hosts(run, record)),
            gate_of(run.job),
        )
        builder = self._attempts.get(record.number)
        if builder is None or not builder.continues(origin, record.events):
            builder = self._attempts[record.number] = _AttemptBuilder(origin)
        builder.add(record.events)
        return builder.build(record, end)


def _with_next(
    attempts: tuple[AttemptRecord, ...],
) -> Iterator[tuple[AttemptRecord, AttemptRecord | None]]:
    return zip(attempts, (*attempts[1:], None), strict=False)


def _end_of(record: AttemptRecord, following: AttemptRecord | None, run: RunRecord) -> float:
    """Return the attempt's end; if it was not recorded, its last update where another attempt followed, else now."""
    last = max((event.time for event in record.events), default=record.began or 0.0)
    if record.ended is not None:
        return max(record.ended, last)
    if following is not None:
        return max(last, as_time(record.status.get("updated")) or 0.0) or following.began or run.now
    return max(run.now, last) if run.live else last or run.now


@dataclass
class _NodeState:
    """The state of a node while events are processed."""

    node_index: int
    host: str
    role: str = "waiting"
    state: str = "expected"
    logical_rank: int | None = None  # in the cycle
    phase: Phase = Phase.SUBMITTED
    since: float = 0.0
    cycle: int = 0  # in which the present phase began
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class _Origin:
    """What the timeline of an attempt begins with. While it is unchanged, new events can be added."""

    asked: float
    queued: float
    began: float
    launched: bool  # the start of the job script is known
    hosts: tuple[str, ...]
    gate: Gate


class _AttemptBuilder:
    """Build the timeline of one attempt from its events."""

    def __init__(self, origin: _Origin) -> None:
        self._origin = origin
        self._asked, self._queued, self._began = origin.asked, origin.queued, origin.began
        self._added = 0  # events
        self._last_added: RecordedEvent | None = None
        self._term, self._cycle, self._driver, self._run_state = 0, 0, "waiting", "gathering"
        self._marks: list[Mark] = []
        self._gate = origin.gate
        self._serving: set[tuple[str, int]] = set()  # services that are ready, by node
        self._cycle_events = RunCycleEvents(self._began, self._gate)
        self._nodes: dict[int, _NodeState] = {}
        for node_index, host in enumerate(origin.hosts):
            self._node(node_index, host)

    def continues(self, origin: _Origin, events: Sequence[RecordedEvent]) -> bool:
        """Return whether the events begin with those that were added. A new leader may have dropped some of them."""
        if origin != self._origin or len(events) < self._added:
            return False
        return self._last_added is None or events[self._added - 1] == self._last_added

    def add(self, events: Sequence[RecordedEvent]) -> None:
        """Process the events that have not been added yet."""
        for event in events[self._added :]:
            if event.time < self._began:
                event = replace(event, time=self._began)
            if event.term != self._term:
                self._term = event.term
                self._handle_new_leader(event)
            self._handle(event)
        self._added, self._last_added = len(events), events[-1] if events else None

    def build(self, record: AttemptRecord, end: float) -> AttemptTimeline:
        """Return the timeline up to now; it does not change the state, so that events can be added later."""
        published = {entry.get("rank"): entry for entry in as_dicts(record.status.get("nodes"))}
        nodes = tuple(
            self._node_timeline(node, published.get(node_index, {}), end)
            for node_index, node in sorted(self._nodes.items())
        )
        cycles = tuple(self._cycles(record, end))
        return AttemptTimeline(record.number, self._asked, self._began, end, nodes, tuple(self._marks), cycles)

    def _node_timeline(self, node: _NodeState, published: dict[str, Any], end: float) -> NodeTimeline:
        """Return the node's timeline; its last status is `published`.

        A node that the last leader excludes without an event was lost with the leader before.
        """
        host = as_text(published.get("host")) or node.host
        role, state, phase, cycle = node.role, node.state, node.phase, node.cycle
        if published.get("role") == "excluded" and phase is not Phase.LOST:
            role, state, phase, cycle = "excluded", as_text(published.get("state")), Phase.LOST, self._cycle
        last = (Span(phase, node.since, end, cycle),) if end > node.since else ()
        return NodeTimeline(node.node_index, host, role, state, phase, (*node.spans, *last))

    def _handle(self, event: RecordedEvent) -> None:
        if event.cycle > self._cycle:
            self._cycle, self._driver, self._serving = event.cycle, "waiting", set()
            self._mark(event.time, "cycle", None, f"cycle {event.cycle} begins")
        self._cycle_events.add(event)
        if event.name == "node" and event.node_index is not None:
            self._handle_node(event, self._node(event.node_index, as_text(event.fields.get("host"))))
        elif event.name == "run":
            self._run_state = as_text(event.fields.get("state"))
            self._update_phases(event.time)
        elif event.name in ("driver_start", "driver_end"):
            self._driver = "running" if event.name == "driver_start" else "ended"
            code = event.fields.get("exit_code")
            ended = f"the driver ended with {code}" if isinstance(code, int) else "the driver ended"
            self._mark(event.time, event.name, None, ended if self._driver == "ended" else "the driver starts")
            self._update_phases(event.time)
        elif event.name == "service" and event.node_index is not None:
            self._handle_service(event, self._node(event.node_index, as_text(event.fields.get("host"))))
        elif event.name == "stalled":
            self._mark(event.time, "stalled", None, "the driver stalled")
        elif event.name == "hang":
            self._mark(event.time, "hang", None, "the run hangs")
        elif event.name == "control":
            requested = " ".join(as_text(event.fields.get(name)) for name in ("host", "kind"))
            text = f"{requested}: {as_text(event.fields.get('reason'))}"
            self._mark(event.time, "control", event.node_index, text)
        elif event.name == "suspended":
            self._mark(event.time, "suspended", None, as_text(event.fields.get("text")))

    def _handle_node(self, event: RecordedEvent, node: _NodeState) -> None:
        before = node.phase
        node.host = as_text(event.fields.get("host")) or node.host
        node.state = as_text(event.fields.get("state")) or node.state
        node.role = as_text(event.fields.get("role")) or node.role
        node.logical_rank = as_int(event.fields.get("logical_rank"))
        self._update_phase(node, event.time)
        if node.phase is Phase.LOST and before is not Phase.LOST:
            self._mark(event.time, "lost", node.node_index, f"{node.host} {node.state}")

    def _handle_service(self, event: RecordedEvent, node: _NodeState) -> None:
        name, state = as_text(event.fields.get("service")), as_text(event.fields.get("state"))
        self._serving.discard((name, node.node_index))
        if state in PASSED_STATES:
            self._serving.add((name, node.node_index))
        if state != "ready":
            self._mark(event.time, "service", node.node_index, f"{name} on {node.host}: {state}")
        self._update_phase(node, event.time)

    def _handle_new_leader(self, event: RecordedEvent) -> None:
        """Reset all nodes: under a new leader every node joins again, and those that do not are known at the end."""
        self._mark(event.time, "lead", None, "another node becomes leader")
        self._driver, self._serving = "waiting", set()
        for node in self._nodes.values():
            if node.phase is not Phase.LOST:
                node.state = "expected"
                self._update_phase(node, event.time)

    def _node(self, node_index: int, host: str) -> _NodeState:
        if node_index not in self._nodes:
            node = self._nodes[node_index] = _NodeState(node_index, host or f"rank-{node_index}", since=self._asked)
            self._enter(node, Phase.PENDING, self._queued)
            if self._origin.launched:
                self._enter(node, Phase.LAUNCHING, self._began)
        return self._nodes[node_index]

    def _update_phases(self, now: float) -> None:
        for node in self._nodes.values():
            self._update_phase(node, now)

    def _update_phase(self, node: _NodeState, now: float) -> None:
        awaited = self._gate.services_on(node.logical_rank) if self._driver == "waiting" else ()
        served = all((name, node.node_index) in self._serving for name in awaited)
        phase = phase_of(node.state, node.role, self._run_state, self._driver, served)
        if phase is not node.phase:
            self._enter(node, phase, now)

    def _enter(self, node: _NodeState, phase: Phase, now: float) -> None:
        """End the node's span and begin the next; a phase of no duration has no span."""
        if now > node.since:
            node.spans.append(Span(node.phase, node.since, now, node.cycle))
            node.since = now
        node.phase, node.cycle = phase, self._cycle

    def _mark(self, time: float, kind: str, node_index: int | None, text: str) -> None:
        self._marks.append(Mark(time, kind, node_index, text))

    def _cycles(self, record: AttemptRecord, end: float) -> Iterator[Cycle]:
        reasons = {entry.get("cycle"): as_text(entry.get("reason")) for entry in as_dicts(record.status.get("cycles"))}
        cycles = self._cycle_events.cycles(end)
        for number, (cycle, its_end) in enumerate(cycles):
            is_last = number == len(cycles) - 1
            path = critical_path(self._path_start(cycle), cycle, its_end if is_last else None)
            reason = reasons.get(cycle.cycle) or cycle.end_reason  # the status lists only the last cycles
            yield Cycle(cycle.cycle, cycle.start, cycle.driver_start, cycle.driver_end, its_end, reason, path)

    def _path_start(self, cycle: CycleEvents) -> list[PathStep]:
        """Return the first steps of a first cycle's path: submission and queue."""
        if cycle.start > self._began:
            return []
        queue = [
            PathStep(Phase.SUBMITTED, None, self._asked, self._queued, "the job is being submitted"),
            PathStep(Phase.PENDING, None, self._queued, self._began, "the job waits in the queue"),
        ]
        return [step for step in queue if step.end > step.start]


def _hosts(run: RunRecord, record: AttemptRecord) -> list[str]:
    """Return the expected nodes by node index: the hosts that the job script wrote, or the requested number."""
    wanted = (as_int(run.job.get("nodes")) or 0) + (as_int(run.job.get("spares")) or 0)
    if as_int(run.job.get("min_nodes")) and record.hosts:
        wanted = 0  # Slurm may have allocated fewer
    published = {
        as_int(entry.get("rank")): as_text(entry.get("host")) for entry in as_dicts(record.status.get("nodes"))
    }
    count = max(wanted, len(record.hosts), *(node_index + 1 for node_index in published if node_index is not None), 0)
    names = dict(enumerate(record.hosts)) if len(record.hosts) == count else {}
    return [names.get(node_index) or published.get(node_index) or f"rank-{node_index}" for node_index in range(count)]
