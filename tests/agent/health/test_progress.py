"""The definition of progress in a cycle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster import progress
from muster.agent.health.progress import SILENT_PROGRESS_S, ProgressTracker


@pytest.fixture
def beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "beat"
    monkeypatch.setenv("MUSTER_BEAT_FILE", str(path))
    monkeypatch.setattr(progress, "BEAT_INTERVAL_S", 0.0)
    return path


def test_a_driver_that_never_beats_has_made_progress_once_it_ran_for_long(beat: Path) -> None:
    tracker = ProgressTracker(str(beat))
    tracker.begin(0, 100.0)
    assert tracker.poll(100.0 + SILENT_PROGRESS_S - 1) is None
    assert tracker.poll(100.0 + SILENT_PROGRESS_S) == 0
    tracker.begin(1, 1000.0)
    assert tracker.poll(1001.0) is None


def test_a_beat_is_progress_only_of_its_own_cycle(beat: Path) -> None:
    tracker = ProgressTracker(str(beat))
    tracker.begin(0, 0.0)
    progress.beat()
    assert tracker.poll(1.0) == 0
    tracker.begin(1, 2.0)
    assert tracker.poll(3.0) is None
    assert tracker.poll(2.0 + SILENT_PROGRESS_S) is None  # it is known to beat: that it does not is no progress
    os.utime(beat, ns=(1, 1))
    assert tracker.poll(4.0) == 1


def test_with_steps_only_a_higher_one_than_in_any_cycle_before_is_progress(beat: Path) -> None:
    tracker = ProgressTracker(str(beat))
    for cycle, (steps, further) in enumerate([([1, 2, 30], True), ([11, 30], False), ([30, 31], True), ([5], False)]):
        tracker.begin(cycle, 0.0)
        for step in steps:
            progress.beat(step=step)
            seen = tracker.poll(1.0)
        assert (seen == cycle) is further


def test_a_later_leader_knows_the_steps_before_it_from_the_file(beat: Path) -> None:
    progress.beat(step=30)
    tracker = ProgressTracker(str(beat))
    tracker.begin(1, 0.0)
    progress.beat(step=12)
    assert tracker.poll(1.0) is None
    progress.beat(step=31)
    assert tracker.poll(1.0) == 1


def test_a_beat_without_a_step_keeps_the_last_one_and_is_seen(beat: Path) -> None:
    progress.beat(step=7)
    os.utime(beat, ns=(1, 1))
    progress.beat()
    assert int(beat.read_text()) == 7
    assert beat.stat().st_mtime_ns > 1


def test_reports_of_a_gang_s_nodes_count_as_beats(beat: Path) -> None:
    tracker = ProgressTracker(str(beat))
    tracker.begin(0, 0.0)
    assert tracker.poll(1.0) is None
    tracker.on_beat(7)
    assert tracker.poll(2.0) == 0
    tracker.begin(1, 3.0)
    tracker.on_beat(7)  # no further than the cycle before
    assert tracker.poll(3.0 + SILENT_PROGRESS_S) is None
    tracker.on_beat(8)
    assert tracker.poll(5.0) == 1
