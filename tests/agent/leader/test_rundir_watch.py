"""The leader's input from files."""

from __future__ import annotations

from pathlib import Path

from tests.agent.conftest import identity

from muster.agent.leader.inbox import RunDirectoryPolled
from muster.agent.leader.rundir_watch import RunDirectoryWatch
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_LOSS_S
from muster.rundir import write_json
from muster.rundir.launcher_log import EarlyEnd
from muster.rundir.startup_heartbeat import write_startup_heartbeat


def test_a_node_that_has_not_arrived_counts_as_lost_when_its_heartbeat_has_stopped(tmp_path: Path) -> None:
    attempt = identity(tmp_path, 0).attempt
    watch = RunDirectoryWatch(attempt, STARTUP_LOSS_S / 2)
    for node_index in (1, 2, FIRST_LEADER_CANDIDATES + 1):
        write_startup_heartbeat(attempt, node_index, "1")
    expected = [1, 2, 3, FIRST_LEADER_CANDIDATES + 1]  # the third has no heartbeat, and of the last one none is awaited
    for poll in range(2):
        write_startup_heartbeat(attempt, 2, f"{poll}")
        assert watch.silent(expected) == set()
    write_startup_heartbeat(attempt, 2, "goes on")
    assert watch.silent(expected) == {1}


def test_a_poll_without_news_is_none_and_a_stop_request_is_news_until_the_run_ends(tmp_path: Path) -> None:
    attempt = identity(tmp_path, 0).attempt
    watch = RunDirectoryWatch(attempt, 0.5)
    assert watch.poll([]) is None
    request = {"reason": "stopped by alice", "signal": 15}
    write_json(attempt.stop_request, request)
    assert watch.poll([]) == watch.poll([]) == RunDirectoryPolled(request, [])


def test_an_ended_task_is_reported_once(tmp_path: Path) -> None:
    attempt = identity(tmp_path, 0).attempt
    watch = RunDirectoryWatch(attempt, 0.5, ["n0", "n1"])
    Path(attempt.steps_log).parent.mkdir(parents=True, exist_ok=True)
    Path(attempt.steps_log).write_text("srun: error: n1: task 1: Killed\n")
    polls = [watch.poll([]) for _ in range(3)]
    ended = [end for news in polls if news is not None for end in news.ended_tasks]
    assert [(end.host, end.node_index) for end in ended] == [("n1", 1)] and isinstance(ended[0], EarlyEnd)
