"""When an idle cluster counts as used, and when it has been idle for long enough."""

from __future__ import annotations

from pathlib import Path

from muster.agent.session.idle import SESSION_TIMEOUT_S, ClusterUse, IdleTimer, OpenSessions
from muster.rundir import RunPaths


def test_it_ends_only_after_the_whole_timeout_without_use() -> None:
    idle = IdleTimer(timeout=10.0, now=0.0)
    assert not idle.expired(False, 9.0)
    assert not idle.expired(True, 9.5)
    assert not idle.expired(False, 19.0)
    assert idle.expired(False, 19.5)


def test_a_session_lives_while_its_file_changes_whatever_its_host_s_clock_says() -> None:
    sessions = OpenSessions()
    assert sessions.any_alive({"n1-7": 5.0}, now=1e6)
    assert sessions.any_alive({"n1-7": 5.0}, now=1e6 + SESSION_TIMEOUT_S - 1)
    assert not sessions.any_alive({"n1-7": 5.0}, now=1e6 + SESSION_TIMEOUT_S)
    assert sessions.any_alive({"n1-7": 15.0}, now=1e6 + SESSION_TIMEOUT_S + 1)
    assert not sessions.any_alive({}, now=1e6 + SESSION_TIMEOUT_S + 2)


def test_a_guest_is_use_until_its_outcome_is_there_and_once_if_it_was_quicker_than_a_poll(tmp_path: Path) -> None:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    guests = tmp_path / "attempt-0" / "guests"
    guests.mkdir(parents=True)
    use = ClusterUse(attempt, lambda: False)
    assert not use.poll(0.0)
    (guests / "a.json").touch()
    assert use.poll(1.0) and use.poll(2.0)
    (guests / "a.outcome").touch()
    assert not use.poll(3.0)
    (guests / "b.json").touch()
    (guests / "b.outcome").touch()
    assert use.poll(4.0)
    assert not use.poll(5.0)


def test_a_job_of_ray_s_is_use(tmp_path: Path) -> None:
    assert ClusterUse(RunPaths(str(tmp_path)).attempt(0), lambda: True).poll(0.0)
