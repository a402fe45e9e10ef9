"""Two bring-ups side by side: where one took longer than the other. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from muster.views.diagnosis import node_seconds, slowest
from muster.views.phases import LOOKS, Phase
from muster.views.record import RunRecord, words
from muster.views.timeline import AttemptTimeline, Cycle, timeline

SHORTEST_S = 0.005


@dataclass(frozen=True)
class Row:
    """One figure of both runs, in seconds; None where a run has none."""

    what: str
    first: float | None
    second: float | None

    @property
    def difference(self) -> float | None:
        return None if self.first is None or self.second is None else self.second - self.first


@dataclass(frozen=True)
class BringUpTimes:
    """The first way to a driver of a run, in figures by name."""

    run: str
    state: str
    nodes: int
    figures: dict[str, float]


def bring_up(run: RunRecord) -> BringUpTimes:
    """Of the attempt that first had a driver, its first cycle; of a run without one, the last attempt."""
    seen = timeline(run)
    attempt = next((one for one in seen.attempts if _driven(one)), seen.attempts[-1])
    cycle = _driven(attempt) or attempt.cycles[0]
    figures: dict[str, float] = {}
    for step in cycle.path:
        name = _name(step.phase, step.what)
        figures[name] = figures.get(name, 0.0) + step.seconds
    started = cycle.driver_start
    if started is not None:
        figures["from job start to driver"] = started - attempt.began
        figures["from request to driver"] = started - attempt.start
        figures["the driver"] = (cycle.driver_end or cycle.end) - started
    slow, usual = slowest(attempt, cycle.number, 1)
    figures["a node's own part, median"] = usual
    figures["a node's own part, slowest"] = slow[0].own if slow else 0.0
    figures["finishing, per node"] = node_seconds(seen).get(Phase.FINISHING, 0.0) / max(1, len(attempt.nodes))
    return BringUpTimes(run.run_id, words(run.status.get("state")), len(attempt.nodes), figures)


def compare(first: BringUpTimes, second: BringUpTimes) -> list[Row]:
    """All figures that either has, but for those next to nothing, in the order in which they come."""
    names = [*dict.fromkeys([*_ORDER, *first.figures, *second.figures])]
    rows = [Row(name, first.figures.get(name), second.figures.get(name)) for name in names]
    return [row for row in rows if max(row.first or 0.0, row.second or 0.0) >= SHORTEST_S]


def _driven(attempt: AttemptTimeline) -> Cycle | None:
    return next((cycle for cycle in attempt.cycles if cycle.driver_start is not None), None)


def _name(phase: Phase, what: str) -> str:
    if phase is Phase.STARTING:
        return "Ray's head" if what.startswith("Ray's head") else "Ray on the last node"
    return {Phase.ARRIVED: "waiting for others", Phase.JOINED: "start of the driver"}.get(phase, LOOKS[phase].title)


_ORDER = (
    "submitted",
    "pending",
    "launching",
    "waiting for others",
    "Ray's head",
    "Ray on the last node",
    "services",
    "start of the driver",
    "from job start to driver",
    "from request to driver",
    "the driver",
    "finishing, per node",
)
