"""Compare the durations of two bring-ups. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from muster.views.diagnosis import node_seconds, slowest
from muster.views.json_values import as_text
from muster.views.phases import PHASE_STYLES, Phase
from muster.views.record import RunRecord
from muster.views.timeline import AttemptTimeline, Cycle, build_timeline

SHORTEST_SHOWN_S = 0.005


@dataclass(frozen=True)
class Row:
    """One figure of both runs, in seconds; None where it does not apply to a run."""

    what: str
    first: float | None
    second: float | None

    @property
    def difference(self) -> float | None:
        return None if self.first is None or self.second is None else self.second - self.first


@dataclass(frozen=True)
class BringUpTimes:
    """The first bring-up of a run; `figures` are seconds by name."""

    run: str
    state: str
    nodes: int
    figures: dict[str, float]


def bring_up(run: RunRecord) -> BringUpTimes:
    """Return the times of the first cycle with a driver; without one, of the last attempt's first cycle."""
    timeline = build_timeline(run)
    attempt = next((one for one in timeline.attempts if _driven(one)), timeline.attempts[-1])
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
    figures["start-up of a node, median"] = usual
    figures["start-up of a node, slowest"] = slow[0].own if slow else 0.0
    figures["finishing, per node"] = node_seconds(timeline).get(Phase.FINISHING, 0.0) / max(1, len(attempt.nodes))
    return BringUpTimes(run.run_id, as_text(run.status.get("state")), len(attempt.nodes), figures)


def compare(first: BringUpTimes, second: BringUpTimes) -> list[Row]:
    """Return the figures that either run has, in chronological order, without negligible ones."""
    names = [*dict.fromkeys([*_ORDER, *first.figures, *second.figures])]
    rows = [Row(name, first.figures.get(name), second.figures.get(name)) for name in names]
    return [row for row in rows if max(row.first or 0.0, row.second or 0.0) >= SHORTEST_SHOWN_S]


def _driven(attempt: AttemptTimeline) -> Cycle | None:
    return next((cycle for cycle in attempt.cycles if cycle.driver_start is not None), None)


def _name(phase: Phase, what: str) -> str:
    if phase is Phase.STARTING:
        return "Ray's head" if what.startswith("Ray's head") else "Ray on the last node"
    return {Phase.ARRIVED: "waiting for others", Phase.JOINED: "start of the driver"}.get(
        phase, PHASE_STYLES[phase].title
    )


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
