"""Timelines of runs, and the sums that hold for every one of them."""

from __future__ import annotations

import pytest
from tests.views.synthetic import START

from muster.rundir import RunPaths
from muster.views.record import RunReader
from muster.views.timeline import NodeTimeline, Timeline, build_timeline


def adds_up(seen: Timeline) -> None:
    """Attempts without a gap; of each node spans without a gap, from the attempt's start to its end; paths too."""
    ends = [seen.start, *(attempt.end for attempt in seen.attempts)]
    assert [attempt.start for attempt in seen.attempts] == ends[:-1] and ends[-1] == seen.end
    for attempt in seen.attempts:
        for node in attempt.nodes:
            edges = [attempt.start, *(span.end for span in node.spans)]
            assert [span.start for span in node.spans] == edges[:-1] and edges[-1] == attempt.end
            assert all(span.end > span.start for span in node.spans)
            assert sum(span.seconds for span in node.spans) == pytest.approx(attempt.end - attempt.start)
        for cycle in attempt.cycles:
            assert not cycle.path or cycle.path[0].start in (attempt.start, cycle.start)
            assert [step.start for step in cycle.path[1:]] == [step.end for step in cycle.path[:-1]]
            if cycle.path and cycle.driver_start is not None:
                assert cycle.path[-1].end == cycle.driver_start


def seen_of(run: RunPaths, now: float = START + 1000.0) -> Timeline:
    seen = build_timeline(RunReader(run, lambda: now).read())
    adds_up(seen)
    return seen


def phases(node: NodeTimeline) -> list[str]:
    return [span.phase.value for span in node.spans]
