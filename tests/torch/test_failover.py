"""Nodes of a job with failover over real connections, without torch: the coordinator is lost, another one follows."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.running import wait_for
from tests.torch.conftest import DEADLINE_S, Player
from tests.torch.failover_game import FailoverGame, leave_all, recalled

from muster.election import follower
from muster.process.running_time import RunningTime
from muster.rundir import create_exclusive
from muster.torch.session import JobOver, Refused, Unreachable
from muster.torch.term_coordinator import TermCoordinator


def term(player: Player) -> TermCoordinator | None:
    coordinator = player.session._coordinator
    assert coordinator is None or isinstance(coordinator, TermCoordinator)
    return coordinator


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailoverGame]:
    monkeypatch.setattr(follower, "FENCE_S", 0.3)  # the members' wait, not the lease: no lease expires in these tests
    monkeypatch.setattr(follower, "CLAIM_STAGGER_S", 0.5)
    game = FailoverGame(tmp_path / "torchrun-run")
    yield game
    leaving = [threading.Thread(target=player.session.withdraw, args=("left",)) for player in game.players]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join(DEADLINE_S)
    assert not any(player.session._thread.is_alive() for player in game.players), "a session's thread is left"


def test_without_a_loss_the_job_ends_as_without_failover(game: FailoverGame) -> None:
    first, second, spare = game.running(3, spares=1)
    assert (first.joined().rank, second.joined().rank) == (0, 1)
    assert first.joined().host == "127.0.0.1" and first.joined().port == second.joined().port
    assert leave_all(first, second) == [0, 0]
    with pytest.raises(JobOver, match="all workers succeeded"):
        spare.joined()


def test_after_the_loss_of_the_coordinator_the_others_form_the_next_round_and_succeed(game: FailoverGame) -> None:
    first, second, spare = game.running(3, spares=1)
    game.crash(first)
    recalled(second)
    second.join()
    assert (second.joined().rank, spare.joined().rank) == (0, 1)
    assert second.joined().number == spare.joined().number == 2
    coordinators = [player for player in (second, spare) if term(player) is not None]
    assert len(coordinators) == 1 and not second.session.is_recalled
    assert leave_all(second, spare) == [0, 0]


def test_a_node_joins_no_other_coordinator_before_its_workers_have_ended(game: FailoverGame) -> None:
    players = game.running(4, max_nodes=3, min_nodes=3, spares=1, last_call=DEADLINE_S)
    first, second, third, spare = players
    game.crash(first)
    recalled(second, third)
    second.join()
    claimed = wait_for("a candidate", lambda: next((term(one) for one in (second, spare) if term(one)), None))
    wait_for("its members", lambda: len(claimed._candidacy.sent) >= 2)
    assert set(claimed._candidacy.sent) == {1, 3} and not claimed.leads  # two of four are no majority
    third.join()
    ranks = [player.joined().rank for player in (second, third, spare)]
    assert ranks == [0, 1, 2]
    assert leave_all(second, third, spare) == [0, 0, 0]


def test_the_loss_of_the_second_coordinator_is_survived_too(game: FailoverGame) -> None:
    plan = {"min_nodes": 3, "max_nodes": 4, "spares": 1, "last_call": 1.0}
    players = game.running(5, **plan)
    game.crash(players[0])
    recalled(*players[1:4])
    for player in players[1:4]:
        player.join()
    for player in players[1:]:
        assert player.joined().number == 2
    wait_for("one coordinator", lambda: sum(term(player) is not None for player in players[1:]) == 1)
    second = next(player for player in players[1:] if term(player) is not None)
    rest = [player for player in players[1:] if player is not second]
    game.crash(second)
    recalled(*rest)
    for player in rest:
        player.join()
    assert sorted(player.joined().rank for player in rest) == [0, 1, 2]
    assert {player.joined().number for player in rest} == {3}
    assert leave_all(*rest) == [0, 0, 0]


def test_with_too_few_nodes_left_the_job_ends_and_names_the_lost_coordinator(game: FailoverGame) -> None:
    first, second, third = game.running(3, min_nodes=3, max_nodes=3)
    game.crash(first)
    recalled(second, third)
    for player in (second.join(), third.join()):
        with pytest.raises(JobOver, match="the coordinator n0 is gone: its connection ended; 2 of the 3 nodes") as over:
            player.joined()
        assert over.value.outcome.exit_code == 125


def test_a_node_that_had_finished_before_the_loss_ends_the_job(game: FailoverGame) -> None:
    first, second, spare = game.running(3, spares=1)
    leaving = second.leave(0)
    wait_for("the report", lambda: _state_of(first, 1) == "gone")
    game.crash(first)
    leaving.join(DEADLINE_S)
    with pytest.raises(JobOver, match="n1 has finished already"):
        spare.joined()
    assert second.session.outcome is not None and second.session.outcome.exit_code == 125


def test_a_coordinator_that_is_signaled_hands_over_to_another_node(game: FailoverGame) -> None:
    first, second, spare = game.running(3, spares=1)
    first.session.withdraw("was ended by SIGTERM")
    game.players.remove(first)
    recalled(second)
    second.join()
    assert (second.joined().rank, spare.joined().rank) == (0, 1)
    assert leave_all(second, spare) == [0, 0]
    assert game.killed == []


def test_a_coordinator_whose_lease_has_ended_leaves_the_job_and_kills_its_workers(game: FailoverGame) -> None:
    first, second, spare = game.running(3, spares=1)
    first.session._loop.call_soon_threadsafe(lambda: term(first)._step_down("its lease has expired"))  # type: ignore[union-attr]
    with pytest.raises(Unreachable, match="this node coordinates the job no longer: its lease has expired"):
        first.join().joined()
    assert game.killed == [0]
    second.join()
    assert (second.joined().rank, spare.joined().rank) == (0, 1)
    assert leave_all(second, spare) == [0, 0]


def test_a_coordinator_that_missed_the_end_of_its_lease_neither_acts_nor_records_an_outcome(game: FailoverGame) -> None:
    first, second, spare = game.running(3, spares=1)
    coordinator = term(first)
    assert coordinator is not None and coordinator._lease is not None

    async def stall() -> None:
        """Let the lease be over, as after a stall, before anything else happens; then lose the other nodes."""
        coordinator._lease._until = 0.0  # type: ignore[union-attr]
        for key in list(coordinator._channels):
            coordinator._lost(key, "is gone")

    asyncio.run_coroutine_threadsafe(stall(), first.session._loop).result(DEADLINE_S)
    with pytest.raises(Unreachable, match="its lease has expired"):
        first.join().joined()
    assert not (game.directory / "outcome").exists()
    second.join()
    assert (second.joined().rank, spare.joined().rank) == (0, 1)
    assert leave_all(second, spare) == [0, 0]


def test_a_coordinator_of_a_suspended_job_goes_on_once_its_nodes_have_answered(game: FailoverGame) -> None:
    first, second, spare = game.running(3, spares=1)
    coordinator = term(first)
    assert coordinator is not None and coordinator._lease is not None
    lease = coordinator._lease

    async def resume() -> bool:
        """Let a minute have passed in which nothing ran; the lease has ended meanwhile."""
        now = time.monotonic()
        coordinator._running_time = RunningTime()
        coordinator._running_time.observe(now - 60.0)
        lease._until = now - 50.0
        return not coordinator._may_act() and lease.lapsed

    assert asyncio.run_coroutine_threadsafe(resume(), first.session._loop).result(DEADLINE_S)
    wait_for("the coordinator to act again", lambda: not lease.lapsed)
    assert coordinator.end_of_term is None and game.killed == []
    assert leave_all(first, second) == [0, 0]
    with pytest.raises(JobOver, match="all workers succeeded"):  # a spare that leaves before it connects has no outcome
        spare.joined()


def test_a_second_node_of_the_same_number_is_refused(game: FailoverGame) -> None:
    first, second, _ = game.running(3, spares=1)
    with pytest.raises(Refused, match="n1 cannot join as node 1: n1 is that node"):
        game.player(1, spares=1).join().joined()
    assert leave_all(first, second) == [0, 0]


def test_a_late_node_finds_the_second_coordinator(game: FailoverGame) -> None:
    plan = {"min_nodes": 2, "max_nodes": 4, "last_call": 0.5}
    players = [game.player(number, **plan).join() for number in range(3)]
    for player in players:
        player.joined()
    game.crash(players[0])
    recalled(*players[1:])
    rest = [player.join() for player in players[1:]]
    assert {player.joined().size for player in rest} == {2}
    late = game.player(3, **plan).join()
    recalled(*rest)  # there is room for it
    for player in rest:
        player.join()
    assert [player.joined().rank for player in (*rest, late)] == [0, 1, 2]
    assert leave_all(*rest, late) == [0, 0, 0]


def test_another_node_coordinates_if_node_0_does_not_come(game: FailoverGame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "SEARCH_MAX_POLL_S", 0.1)
    players = [game.player(number, spares=1, last_call=0.5) for number in (1, 2)]
    for player in players:
        player.session._election._gather_timeout = 3.0  # nodes wait so long for node 0; the coordinator waits longer
    second, third = [player.join() for player in players]
    assert {second.joined().rank, third.joined().rank} == {0, 1}
    assert leave_all(second, third) == [0, 0]


def test_the_outcome_in_the_directory_of_another_job_is_refused(game: FailoverGame) -> None:
    game.directory.mkdir()
    outcome = {"state": "succeeded", "exit_code": 0, "end_reason": "all workers succeeded"}
    assert create_exclusive(str(game.directory / "outcome"), outcome)
    with pytest.raises(Refused, match=r"has ended .all workers succeeded.; a new job needs another --rdzv-id"):
        game.player(1, spares=1).join().joined()


def test_a_directory_that_cannot_be_made_is_reported(game: FailoverGame) -> None:
    game.directory.write_text("a file")
    with pytest.raises(Unreachable, match=r"failover_dir: .*File exists"):
        game.player(0, spares=1).join().joined()


def _state_of(coordinator: Player, node_index: int) -> str | None:
    members = coordinator.session._coordinator._job.members.values()  # type: ignore[union-attr]
    return next((member.state.value for member in members if member.node_index == node_index), None)
