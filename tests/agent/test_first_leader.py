"""A node leads the first term if no lower rank can, and waits for ranks that are only slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agent.conftest import identity

from muster.agent import first_leader
from muster.agent.first_leader import FirstLeaderElection
from muster.agent.job import Identity
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_SILENCE_S
from muster.rundir.startup_heartbeat import read_startup_heartbeats, write_startup_heartbeat

POLLS = int(STARTUP_SILENCE_S) + 1  # a second apart


@pytest.fixture
def at(tmp_path: Path) -> Callable[[int], Identity]:
    return lambda rank: identity(tmp_path, rank)


def test_a_node_whose_heartbeat_has_stopped_is_replaced_by_the_next(at: Callable[[int], Identity]) -> None:
    second, third = FirstLeaderElection(at(1), 1.0), FirstLeaderElection(at(2), 1.0)
    write_startup_heartbeat(at(0).attempt, 0, "7")
    polls = [(second.poll(), third.poll()) for _ in range(POLLS + 5)]
    assert [one for one, _ in polls] == [False] * (POLLS - 1) + [True] * 6
    assert not any(other for _, other in polls)  # the node between them lives


def test_a_node_that_lives_or_whose_state_is_unknown_is_waited_for(at: Callable[[int], Identity]) -> None:
    slow, unknown = FirstLeaderElection(at(1), 1.0), FirstLeaderElection(at(1), 1.0)
    for _ in range(POLLS * 3):
        assert not unknown.poll()
    for poll in range(POLLS * 3):
        write_startup_heartbeat(at(0).attempt, 0, f"{poll}")
        assert not slow.poll()


def test_after_an_ended_task_and_a_silent_node_the_next_one_leads(at: Callable[[int], Identity]) -> None:
    agent = at(2)
    Path(agent.attempt.steps_log).write_text("srun: error: n0: task 0: Exited with exit code 122\n")
    write_startup_heartbeat(agent.attempt, 1, "7")
    election = FirstLeaderElection(agent, 1.0)
    assert [election.poll() for _ in range(POLLS)][-2:] == [False, True]


def test_an_empty_heartbeat_is_ignored_and_a_high_rank_neither_writes_nor_leads(
    at: Callable[[int], Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = at(0).attempt
    Path(attempt.startup_heartbeat(0)).write_text("")
    assert read_startup_heartbeats(attempt, range(3)) == {}
    monkeypatch.setattr(first_leader, "write_startup_heartbeat", None)
    assert not FirstLeaderElection(at(FIRST_LEADER_CANDIDATES + 1), 1.0).poll()
