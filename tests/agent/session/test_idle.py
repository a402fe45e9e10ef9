"""When an idle cluster counts as used, and when it has been idle for long enough."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from muster.agent.session import idle
from muster.agent.session.idle import SESSION_TIMEOUT_S, CachedPoll, ClusterUse, IdleTimer, OpenSessions
from muster.rundir import RunPaths


def test_it_ends_only_after_the_whole_timeout_without_use() -> None:
    timer = IdleTimer(timeout=10.0, now=0.0)
    assert not timer.expired(False, 9.0)
    assert not timer.expired(True, 9.5)
    assert not timer.expired(False, 19.0)
    assert timer.expired(False, 19.5)


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


@pytest.mark.parametrize(("interval", "polls"), [(1000.0, 1), (0.0, 3)])
def test_ray_is_polled_at_most_once_per_interval(interval: float, polls: int) -> None:
    made: list[bool] = []

    def poll() -> bool:
        made.append(False)
        return False

    cached = CachedPoll(poll, interval)
    assert [cached(), cached(), cached()] == [False] * 3
    assert len(made) == polls


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of an idle cluster, whose driver changes no signal handlers of the tests."""
    (tmp_path / "attempt-0").mkdir()
    monkeypatch.setenv("MUSTER_ATTEMPT", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(signal, "signal", lambda signum, handler: None)
    return tmp_path


def test_the_driver_ends_with_success_on_a_request_and_prints_its_reason(
    cluster: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (cluster / "job.json").write_text("{}")
    (cluster / "attempt-0" / "down").write_text(json.dumps({"reason": "ended by alice"}))
    assert idle.main([str(cluster)]) == 0
    out = capfd.readouterr().out
    assert f"it ends with: muster down {cluster.name}\n" in out and out.endswith("muster: ended by alice\n")


def test_the_driver_of_an_unused_cluster_ends_with_success(cluster: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (cluster / "job.json").write_text(json.dumps({"idle_timeout": 0.001}))
    assert idle.main([str(cluster)]) == 0
    assert "the cluster was unused for 0.001 s and ends" in capfd.readouterr().out
