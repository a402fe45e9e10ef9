"""Heartbeat files of the first nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.rundir import AttemptPaths, RunPaths
from muster.rundir.startup_heartbeat import read_startup_heartbeats, write_startup_heartbeat


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    os.makedirs(os.path.dirname(attempt.startup_heartbeat(0)))
    return attempt


def test_each_heartbeat_replaces_the_one_before(attempt: AttemptPaths) -> None:
    for text in ("1", "2"):
        write_startup_heartbeat(attempt, 0, text)
    write_startup_heartbeat(attempt, 4, "7")
    assert read_startup_heartbeats(attempt, range(9)) == {0: "2\n", 4: "7\n"}
    assert read_startup_heartbeats(attempt, [4]) == {4: "7\n"}


def test_a_heartbeat_that_is_being_written_does_not_count(attempt: AttemptPaths) -> None:
    Path(attempt.startup_heartbeat(0)).touch()
    Path(attempt.startup_heartbeat(1)).write_bytes(b"\xff\n")
    assert read_startup_heartbeats(attempt, range(3)) == {1: "\N{REPLACEMENT CHARACTER}\n"}


def test_a_heartbeat_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write_startup_heartbeat(RunPaths(str(tmp_path)).attempt(0), 0, "1")
