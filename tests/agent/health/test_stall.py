"""Stall detection."""

from __future__ import annotations

from pathlib import Path

from muster.agent.health.stall import StallDetector


def test_the_timeout_counts_from_the_last_output_or_beat(tmp_path: Path) -> None:
    log, beat = tmp_path / "log", tmp_path / "beat"
    stall = StallDetector(10, str(log), str(beat))
    assert not stall.poll(100)
    log.write_text("output")
    assert not stall.poll(109)
    assert not stall.poll(118)
    beat.touch()
    assert not stall.poll(120)
    assert not stall.poll(129)
    assert stall.poll(130)


def test_output_in_a_further_file_of_the_log_is_activity(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("output")
    stall = StallDetector(10, str(log), str(tmp_path / "beat"))
    assert not stall.poll(100)
    (tmp_path / "log.000000000000006").write_text("more")
    assert not stall.poll(110)
    assert stall.poll(120)
