"""The timeline of a run: for every attempt and node the spans of its phases, without a gap. Pure.

A fold over the events: each changes the state of one node, of the run or of the driver, and whoever's phase is another
after it begins a new span. So the spans of a node add up to the wall time of its attempt by construction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from muster.views.critical_path import PathStep, critical_path
from muster.views.cycle_events import CycleEvents, RunCycleEvents
from muster.views.phases import Phase, phase_of
from muster.views.record import AttemptRecord, Happening, RunRecord, moment, records, whole, words
from muster.views.service_gate import HOLDS_NOBODY, gate_of


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
class NodeLine:
    """One node of an attempt, with its last role, state and phase; in the latter it may have spent no time."""

    rank: int
    host: str
    role: str
    state: str
    phase: Phase
    spans: tuple[Span, ...]

    def seconds(self, phase: Phase, cycle: int | None = None) -> float:
        """What it spent in this phase, in this cycle or in all."""
        return sum(span.seconds for span in self.spans if span.phase is phase and cycle in (None, span.cycle))


@dataclass(frozen=True)
class Mark:
    """A moment worth a line across the picture: a cycle begins, a node is lost, the driver starts or ends."""

    time: float
    kind: str
    rank: int | None
    text: str


@dataclass(frozen=True)
class Cycle:
    """One life of the cluster: `path` are the steps that led to its driver, or to what it still waits for."""

    number: int
    start: float
    driver_start: float | None
    driver_end: float | None
    end: float
    reason: str  # why it ended
    path: tuple[PathStep, ...]


@dataclass(frozen=True)
class AttemptTimeline:
    """One attempt. `began` is the job's start: what lies before is the queue's."""

    number: int
    start: float
    began: float
    end: float
    nodes: tuple[NodeLine, ...]
    marks: tuple[Mark, ...]
    cycles: tuple[Cycle, ...]


@dataclass(frozen=True)
class Timeline:
    """A run from the request to its end, or to now."""

    start: float
    end: float
    attempts: tuple[AttemptTimeline, ...]

    @property
    def wall(self) -> float:
        return self.end - self.start


def timeline(run: RunRecord) -> Timeline:
    """All attempts, each beginning where the one before ended."""
    attempts: list[AttemptTimeline] = []
    start, queue = run.asked, run.submitted
    for record, following in _with_next(run.attempts):
        end = _end_of(record, following, run)
        attempt = _Fold(run, record, start, queue, max(end, start)).folded()
        attempts.append(attempt)
        start = queue = attempt.end
    end = start if attempts and not run.live else max(start, run.now)
    if not attempts or (run.live and run.attempts[-1].ended is not None):  # still, or again, in the queue
        waiting = AttemptRecord(len(attempts))
        attempts.append(_Fold(run, waiting, start, min(max(queue, start), end), end).folded())
    return Timeline(run.asked, end, tuple(attempts))


def _with_next(
    attempts: tuple[AttemptRecord, ...],
) -> Iterator[tuple[AttemptRecord, AttemptRecord | None]]:
    return zip(attempts, (*attempts[1:], None), strict=False)


def _end_of(record: AttemptRecord, following: AttemptRecord | None, run: RunRecord) -> float:
    """Of an attempt that nobody recorded the end of: its last word, where another followed; else now."""
    last = max((event.time for event in record.events), default=record.began or 0.0)
    if record.ended is not None:
        return max(record.ended, last)
    if following is not None:
        return max(last, moment(record.status.get("updated")) or 0.0) or following.began or run.now
    return max(run.now, last) if run.live else last or run.now


@dataclass
class _Open:
    """A node while the events are being folded."""

    rank: int
    host: str
    role: str = "waiting"
    state: str = "expected"
    logical: int | None = None  # its rank in the cycle
    phase: Phase = Phase.SUBMITTED
    since: float = 0.0
    cycle: int = 0  # in which the present phase began
    spans: list[Span] = field(default_factory=list)


class _Fold:
    """One attempt in the making."""

    def __init__(self, run: RunRecord, record: AttemptRecord, start: float, queued: float, end: float) -> None:
        self._record, self._start, self._end = record, start, end
        self._began = min(max(record.began if record.began is not None else end, start), end)
        self._cycle, self._driver, self._run_state = 0, "waiting", "gathering"
        self._marks: list[Mark] = []
        self._gate = gate_of(run.job)
        self._serving: set[tuple[str, int]] = set()  # services that are ready, by node
        self._moments = RunCycleEvents(self._began, self._gate)
        self._nodes: dict[int, _Open] = {}
        self._asked, self._queued = start, min(max(queued, start), self._began)
        for rank, host in enumerate(_hosts(run, record)):
            self._node(rank, host)

    def folded(self) -> AttemptTimeline:
        term = 0
        for event in self._record.events:
            if not self._began <= event.time <= self._end:
                event = replace(event, time=min(max(event.time, self._began), self._end))
            if event.term != term:
                term = event.term
                self._leader_changes(event)
            self._take(event)
        self._settle()
        for node in self._nodes.values():
            self._enter(node, None, self._end)
        lines = [
            NodeLine(node.rank, node.host, node.role, node.state, node.phase, tuple(node.spans))
            for _, node in sorted(self._nodes.items())
        ]
        cycles = tuple(self._cycles())
        return AttemptTimeline(
            self._record.number, self._start, self._began, self._end, tuple(lines), tuple(self._marks), cycles
        )

    def _take(self, event: Happening) -> None:
        if event.cycle > self._cycle:
            self._cycle, self._driver, self._serving = event.cycle, "waiting", set()
            self._mark(event.time, "cycle", None, f"cycle {event.cycle} begins")
        self._moments.note(event)
        if event.name == "node" and event.rank is not None:
            self._node_moves(event, self._node(event.rank, words(event.fields.get("host"))))
        elif event.name == "run":
            self._run_state = words(event.fields.get("state"))
            self._look_at_all(event.time)
        elif event.name in ("driver_start", "driver_end"):
            self._driver = "running" if event.name == "driver_start" else "ended"
            code = event.fields.get("exit_code")
            ended = f"the driver ended with {code}" if isinstance(code, int) else "the driver ended"
            self._mark(event.time, event.name, None, ended if self._driver == "ended" else "the driver starts")
            self._look_at_all(event.time)
        elif event.name == "service" and event.rank is not None:
            self._service_moves(event, self._node(event.rank, words(event.fields.get("host"))))
        elif event.name == "stalled":
            self._mark(event.time, "stalled", None, "the driver stalled")

    def _node_moves(self, event: Happening, node: _Open) -> None:
        before = node.phase
        node.host = words(event.fields.get("host")) or node.host
        node.state = words(event.fields.get("state")) or node.state
        node.role = words(event.fields.get("role")) or node.role
        node.logical = whole(event.fields.get("logical_rank"))
        self._look_at(node, event.time)
        if node.phase is Phase.LOST and before is not Phase.LOST:
            self._mark(event.time, "lost", node.rank, f"{node.host} {node.state}")

    def _service_moves(self, event: Happening, node: _Open) -> None:
        name, state = words(event.fields.get("service")), words(event.fields.get("state"))
        self._serving.discard((name, node.rank))
        if state in HOLDS_NOBODY:
            self._serving.add((name, node.rank))
        if state != "ready":
            self._mark(event.time, "service", node.rank, f"{name} on {node.host}: {state}")
        self._look_at(node, event.time)

    def _leader_changes(self, event: Happening) -> None:
        """Under another leader everybody has to join anew; who does not is known at the end."""
        self._mark(event.time, "lead", None, "another leader takes over")
        self._driver, self._serving = "waiting", set()
        for node in self._nodes.values():
            if node.phase is not Phase.LOST:
                node.state = "expected"
                self._look_at(node, event.time)

    def _settle(self) -> None:
        """A node that the last lead holds for lost, though no event says so, was lost with the leader before it."""
        last = {entry.get("rank"): entry for entry in records(self._record.status.get("nodes"))}
        for node in self._nodes.values():
            entry = last.get(node.rank, {})
            node.host = words(entry.get("host")) or node.host
            if entry.get("role") == "excluded" and node.phase is not Phase.LOST:
                node.role, node.state = "excluded", words(entry.get("state"))
                self._enter(node, Phase.LOST, node.since)

    def _node(self, rank: int, host: str) -> _Open:
        if rank not in self._nodes:
            node = self._nodes[rank] = _Open(rank, host or f"rank-{rank}", since=self._asked)
            self._enter(node, Phase.PENDING, self._queued)
            if self._record.began is not None:
                self._enter(node, Phase.LAUNCHING, self._began)
        return self._nodes[rank]

    def _look_at_all(self, now: float) -> None:
        for node in self._nodes.values():
            self._look_at(node, now)

    def _look_at(self, node: _Open, now: float) -> None:
        awaited = self._gate.on(node.logical) if self._driver == "waiting" else ()
        served = all((name, node.rank) in self._serving for name in awaited)
        phase = phase_of(node.state, node.role, self._run_state, self._driver, served)
        if phase is not node.phase:
            self._enter(node, phase, now)

    def _enter(self, node: _Open, phase: Phase | None, now: float) -> None:
        """The node's span ends here; a phase in which it spent no time leaves no trace."""
        if now > node.since:
            node.spans.append(Span(node.phase, node.since, now, node.cycle))
            node.since = now
        node.phase, node.cycle = phase or node.phase, self._cycle

    def _mark(self, time: float, kind: str, rank: int | None, text: str) -> None:
        self._marks.append(Mark(time, kind, rank, text))

    def _cycles(self) -> Iterator[Cycle]:
        reasons = {
            entry.get("cycle"): words(entry.get("reason")) for entry in records(self._record.status.get("cycles"))
        }
        moments = self._moments.cycles(self._end)
        for number, (own, end) in enumerate(moments):
            waits = number == len(moments) - 1
            path = critical_path(self._path_start(own), own, end if waits else None)
            yield Cycle(own.cycle, own.start, own.driver_start, own.driver_end, end, reasons.get(own.cycle, ""), path)

    def _path_start(self, cycle: CycleEvents) -> list[PathStep]:
        """What the path of a first cycle begins with: the way through the queue."""
        if cycle.start > self._began:
            return []
        queue = [
            PathStep(Phase.SUBMITTED, None, self._asked, self._queued, "the job is handed over"),
            PathStep(Phase.PENDING, None, self._queued, self._began, "the job waits in the queue"),
        ]
        return [step for step in queue if step.end > step.start]


def _hosts(run: RunRecord, record: AttemptRecord) -> list[str]:
    """The nodes that are to be there, by rank: as the job script wrote them, or as many as were asked for."""
    wanted = (whole(run.job.get("nodes")) or 0) + (whole(run.job.get("spares")) or 0)
    published = {whole(entry.get("rank")): words(entry.get("host")) for entry in records(record.status.get("nodes"))}
    count = max(wanted, len(record.hosts), *(rank + 1 for rank in published if rank is not None), 0)
    names = dict(enumerate(record.hosts)) if len(record.hosts) == count else {}
    return [names.get(rank) or published.get(rank) or f"rank-{rank}" for rank in range(count)]
