"""`muster.beat()`: what it writes, how often, and that it never fails the driver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster import progress


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a run, for beats without a pause between them."""
    monkeypatch.setenv("MUSTER_BEAT_FILE", str(tmp_path / "beat"))
    monkeypatch.setattr(progress, "BEAT_INTERVAL_S", 0.0)
    monkeypatch.setattr(progress, "_last", 0.0)
    return tmp_path / "beat"


def test_outside_a_run_a_beat_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSTER_BEAT_FILE", raising=False)
    progress.beat(3)
    assert list(tmp_path.iterdir()) == []


def test_every_beat_is_a_newer_time_of_the_file(file: Path) -> None:
    progress.beat()
    assert file.read_bytes() == b""
    os.utime(file, (1, 1))
    progress.beat()
    assert file.stat().st_mtime > 1


def test_a_step_replaces_the_one_before_in_a_fixed_width(file: Path) -> None:
    progress.beat(12345)
    progress.beat(7)
    assert file.read_bytes() == b"00000000000000000007\n"
    progress.beat()  # keeps the step
    assert int(file.read_text()) == 7


def test_beats_in_quick_succession_are_written_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BEAT_INTERVAL_S", 3600.0)
    monkeypatch.setattr(progress, "_last", -3600.0)
    progress.beat(1)
    progress.beat(2)
    assert int(file.read_text()) == 1


def test_a_run_directory_that_is_gone_or_full_does_not_fail_the_driver(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_BEAT_FILE", str(file.parent / "gone" / "beat"))
    progress.beat(1)
    monkeypatch.setenv("MUSTER_BEAT_FILE", "/dev/full")
    descriptors = len(os.listdir("/proc/self/fd"))
    progress.beat(1)
    assert len(os.listdir("/proc/self/fd")) == descriptors
