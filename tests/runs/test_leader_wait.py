"""Messages about a run that has begun and has no leader yet."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from muster.election.leader_silence import STARTUP_SILENCE_S
from muster.rundir import AttemptPaths, RunPaths, write_json
from muster.rundir.startup_heartbeat import write_startup_heartbeat
from muster.runs import leader_wait
from muster.runs.leader_wait import LeaderWait
from muster.runs.status import read_status


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    made = RunPaths(str(tmp_path)).attempt(0)
    os.makedirs(os.path.dirname(made.node_record(0)))
    Path(made.hosts).write_text("n1\nn2\n")
    return made


def test_the_status_shows_whether_the_first_node_has_begun_lives_or_is_silent(attempt: AttemptPaths) -> None:
    run = RunPaths(os.path.dirname(attempt.root))
    assert "waiting for n1, the first leader: no process of the job has started" in read_status(run)["waiting"]
    write_startup_heartbeat(attempt, 0, "1")
    assert "waiting for n1, the first leader: its --setup" in read_status(run)["waiting"]
    old = time.time() - 3 * STARTUP_SILENCE_S
    os.utime(attempt.startup_heartbeat(0), (old, old))
    assert "n1, the first leader, has sent no heartbeat for 3" in read_status(run)["waiting"]
    write_json(attempt.leader(), {"rank": 1})
    assert read_status(run)["waiting"] is None


def test_followers_get_the_wait_message_when_it_changes_and_once_a_minute(
    attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(leader_wait.time, "monotonic", lambda: now)
    watch = LeaderWait(attempt)
    write_startup_heartbeat(attempt, 0, "1")
    said = {}
    for second in range(200):
        now = 1000.0 + second
        if second < 100:
            write_startup_heartbeat(attempt, 0, f"{second}")
        if (text := watch.poll()) is not None:
            said[second] = text
    silent = int(99 + STARTUP_SILENCE_S)  # the last heartbeat was written in second 99
    assert [(second, text.split()[0]) for second, text in said.items()] == [
        (10, "waiting"),
        (70, "waiting"),
        (silent, "n1,"),
        (silent + 60, "n1,"),
    ]
    write_json(attempt.leader(), {"rank": 1})
    now = 2000.0
    assert watch.poll() is None
