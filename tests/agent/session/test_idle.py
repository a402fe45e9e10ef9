"""When an idle cluster counts as used, and when it has been idle for long enough."""

from __future__ import annotations

import json
from pathlib import Path

from muster.agent.ray.jobs import any_lives
from muster.agent.session.idle import SESSION_SILENT_S, IdleCluster, OpenSessions, Use
from muster.rundir import RunPaths


def test_it_ends_only_after_the_whole_timeout_without_use() -> None:
    idle = IdleCluster(timeout=10.0, now=0.0)
    assert not idle.look(False, 9.0)
    assert not idle.look(True, 9.5)
    assert not idle.look(False, 19.0)
    assert idle.look(False, 19.5)


def test_a_session_lives_while_its_file_changes_whatever_its_host_s_clock_says() -> None:
    sessions = OpenSessions()
    assert sessions.live({"n1-7": 5.0}, now=1e6)
    assert sessions.live({"n1-7": 5.0}, now=1e6 + SESSION_SILENT_S - 1)
    assert not sessions.live({"n1-7": 5.0}, now=1e6 + SESSION_SILENT_S)
    assert sessions.live({"n1-7": 15.0}, now=1e6 + SESSION_SILENT_S + 1)
    assert not sessions.live({}, now=1e6 + SESSION_SILENT_S + 2)


def test_a_guest_is_use_until_its_outcome_is_there_and_once_if_it_was_quicker_than_a_look(tmp_path: Path) -> None:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    guests = tmp_path / "attempt-0" / "guests"
    guests.mkdir(parents=True)
    use = Use(attempt, lambda: False)
    assert not use.look(0.0)
    (guests / "a.json").touch()
    assert use.look(1.0) and use.look(2.0)
    (guests / "a.outcome").touch()
    assert not use.look(3.0)
    (guests / "b.json").touch()
    (guests / "b.outcome").touch()
    assert use.look(4.0)
    assert not use.look(5.0)


def test_a_job_of_ray_s_is_use(tmp_path: Path) -> None:
    assert Use(RunPaths(str(tmp_path)).attempt(0), lambda: True).look(0.0)


def test_a_submitted_job_lives_until_its_record_says_otherwise() -> None:
    records = {state: json.dumps({"status": state}).encode() for state in ("PENDING", "RUNNING", "SUCCEEDED", "FAILED")}
    assert [state for state, record in records.items() if any_lives([record])] == ["PENDING", "RUNNING"]
