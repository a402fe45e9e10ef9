"""The metrics file of a live run: written by its viewers, not too often, and never over the final metrics."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.views.drawing import drawn
from tests.views.synthetic import SyntheticRun

from muster.rundir import write_json
from muster.views import metrics_file
from muster.views.metrics_file import REFRESH_S, MetricsFile
from muster.views.record import RunReader, RunRecord
from muster.views.report import ensure_report
from muster.views.terminal import Top


@pytest.fixture
def run(tmp_path: Path) -> SyntheticRun:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.write("running")
    return run


def state(run: SyntheticRun) -> str:
    lines = Path(run.paths.metrics).read_text().splitlines()
    (state,) = [line for line in lines if line.startswith("muster_run_state") and line.endswith(" 1")]
    return state.partition('state="')[2].partition('"')[0]


def aged(run: SyntheticRun) -> None:
    old = time.time() - REFRESH_S - 1.0
    os.utime(run.paths.metrics, (old, old))


def test_a_viewer_writes_the_file_unless_it_is_fresh(run: SyntheticRun) -> None:
    follower = MetricsFile(run.paths)
    assert follower.refresh() and state(run) == "running"
    written = os.stat(run.paths.metrics).st_ino
    assert not follower.refresh() and not MetricsFile(run.paths).refresh()
    assert os.stat(run.paths.metrics).st_ino == written
    aged(run)
    assert not follower.refresh()  # it has just looked
    assert MetricsFile(run.paths).refresh() and os.stat(run.paths.metrics).st_ino != written
    assert [name for name in os.listdir(run.paths.root) if name.startswith("metrics")] == ["metrics.prom"]


def test_the_live_view_is_a_follower(run: SyntheticRun) -> None:
    drawn(Top(run.paths, lambda: run.now + 1.0))
    assert state(run) == "running"


def test_of_a_run_that_is_over_the_last_ones_stay(run: SyntheticRun) -> None:
    seen = RunReader(run.paths).read()
    run.ends()
    assert ensure_report(run.paths)
    aged(run)
    assert not MetricsFile(run.paths).refresh(seen)
    assert state(run) == "succeeded"


def test_an_end_while_they_are_written_is_noticed(run: SyntheticRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_meanwhile(seen: RunRecord) -> str:
        run.ends(3)
        assert ensure_report(run.paths) and state(run) == "failed"
        return made(seen)

    made = metrics_file.metrics
    monkeypatch.setattr(metrics_file, "metrics", ends_meanwhile)
    assert MetricsFile(run.paths).refresh()
    assert state(run) == "failed"


def test_a_place_that_cannot_be_written_is_no_reason_to_fail(run: SyntheticRun) -> None:
    os.mkdir(run.paths.metrics)
    aged(run)
    assert not MetricsFile(run.paths).refresh()


def test_nothing_is_written_of_an_attempt_that_another_follows(run: SyntheticRun) -> None:
    run.ends(3)
    write_json(run.attempt.next_attempt, {"again": "requeue", "cause": "exit=3", "note": ""})
    assert not MetricsFile(run.paths).refresh()
    assert not os.path.exists(run.paths.metrics)
