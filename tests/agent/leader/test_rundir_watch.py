"""The leader's input from files."""

from __future__ import annotations

from pathlib import Path

from tests.agent.conftest import identity

from muster.agent.leader.rundir_watch import RunDirectoryWatch
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_LOSS_S
from muster.rundir.startup_heartbeat import write_startup_heartbeat


def test_a_node_that_has_not_arrived_counts_as_lost_when_its_heartbeat_has_stopped(tmp_path: Path) -> None:
    attempt = identity(tmp_path, 0).attempt
    watch = RunDirectoryWatch(attempt, STARTUP_LOSS_S / 2)
    for rank in (1, 2, FIRST_LEADER_CANDIDATES + 1):
        write_startup_heartbeat(attempt, rank, "1")
    expected = [1, 2, 3, FIRST_LEADER_CANDIDATES + 1]  # the third has no heartbeat, and of the last one none is awaited
    for poll in range(2):
        write_startup_heartbeat(attempt, 2, f"{poll}")
        assert watch.silent(expected) == set()
    write_startup_heartbeat(attempt, 2, "goes on")
    assert watch.silent(expected) == {1}
