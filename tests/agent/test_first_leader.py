"""What a node without a leader writes to the run directory and reads from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agent.conftest import identity

from muster.agent.first_leader import StartupPoll
from muster.agent.job import Identity
from muster.rundir.startup_heartbeat import read_startup_heartbeats, write_startup_heartbeat


@pytest.fixture
def at(tmp_path: Path) -> Callable[[int], Identity]:
    return lambda node_index: identity(tmp_path, node_index)


def test_a_poll_writes_a_new_heartbeat_and_reads_those_of_the_nodes_before(at: Callable[[int], Identity]) -> None:
    attempt = at(0).attempt
    write_startup_heartbeat(attempt, 0, "7")
    second, third = StartupPoll(at(1)), StartupPoll(at(2))
    assert second.read().heartbeats.keys() == {0}
    first_view = third.read()
    assert first_view.heartbeats.keys() == {0, 1}
    second.read()
    again = third.read()
    assert again.heartbeats[0] == first_view.heartbeats[0] and again.heartbeats[1] != first_view.heartbeats[1]


def test_the_tasks_that_the_launcher_reports_as_ended_are_read(at: Callable[[int], Identity]) -> None:
    agent = at(2)
    assert StartupPoll(agent).read().ended == frozenset()
    Path(agent.attempt.steps_log).write_text("srun: error: n0: task 0: Exited with exit code 122\n")
    assert StartupPoll(agent).read().ended == {0}


def test_an_empty_heartbeat_is_ignored(at: Callable[[int], Identity]) -> None:
    attempt = at(0).attempt
    Path(attempt.startup_heartbeat(0)).write_text("")
    assert read_startup_heartbeats(attempt, range(3)) == {}


def test_a_heartbeat_that_cannot_be_written_does_not_stop_the_poll(at: Callable[[int], Identity]) -> None:
    agent = at(1)
    write_startup_heartbeat(agent.attempt, 0, "7")
    os.mkdir(agent.attempt.startup_heartbeat(1))
    assert StartupPoll(agent).read().heartbeats.keys() == {0}
