"""Coordinator and nodes over real connections, without torch: admission, messages, and the order of leaving."""

from __future__ import annotations

import threading

import pytest
from tests.running import wait_for
from tests.torch.conftest import DEADLINE_S, Game, Player

from muster.lifecycle.events import RunOutcome
from muster.torch.coordinator import coordinate
from muster.torch.session import JobOver, Refused, Unreachable

SPARE = {"spares": 1}


def all_gone(leaving: list[threading.Thread]) -> bool:
    for thread in leaving:
        thread.join(DEADLINE_S)
    return not any(thread.is_alive() for thread in leaving)


def ended(player: Player) -> tuple[str, int]:
    with pytest.raises(JobOver) as caught:
        player.joined()
    return caught.value.outcome.state, caught.value.outcome.exit_code


def test_nodes_get_ranks_by_their_numbers_and_the_same_store(game: Game) -> None:
    second, first = game.player(1).join(), game.player(0).join()
    assert (first.joined().rank, second.joined().rank) == (0, 1)
    assert first.joined() == first.rounds[0] and first.rounds[0].size == 2
    assert first.rounds[0].port == second.rounds[0].port


def test_a_spare_receives_the_success_before_the_coordinator_closes(game: Game) -> None:
    first, second, spare = game.running(3, **SPARE)
    assert all_gone([first.leave(0), second.leave(0)])
    assert ended(spare) == ("succeeded", 0)


def test_all_nodes_receive_the_first_failure(game: Game) -> None:
    first, second, spare = game.running(3, **SPARE)
    assert all_gone([second.leave(3, "the worker of rank 1 exited with 3")])
    assert all_gone([first.leave(1)])
    assert ended(spare) == ("failed", 3)
    assert first.session.outcome == second.session.outcome == spare.session.outcome


def test_a_failure_recalls_the_nodes_that_still_run(game: Game) -> None:
    first, second = game.running(2)
    assert not first.session.is_recalled
    assert all_gone([second.leave(3)])
    wait_for("the recall", lambda: first.session.is_recalled)
    assert ended(first.join()) == ("failed", 3)


def test_a_lost_node_recalls_the_others_and_the_spare_takes_its_place(game: Game) -> None:
    first, second, spare = game.running(3, **SPARE)
    game.drop(second)
    wait_for("the recall", lambda: first.session.is_recalled)
    first.join()
    assert (first.joined().rank, spare.joined().rank) == (0, 1)
    assert first.joined().number == 2 and first.joined().port == 2  # a new store
    assert not first.session.is_recalled


def test_a_lost_spare_recalls_no_node(game: Game) -> None:
    first, second, spare = game.running(3, **SPARE)
    game.drop(spare)
    with pytest.raises(Unreachable):
        spare.joined()
    assert not first.session.is_recalled
    assert all_gone([first.leave(0), second.leave(0)])
    assert first.session.outcome is not None and first.session.outcome.exit_code == 0
    # Messages arrive in order: with the outcome, every recall would have arrived.
    assert (first.session._recalled, second.session._recalled) == (0, 0)


def test_a_late_node_is_a_spare(game: Game) -> None:
    plan = {**SPARE, "last_call": 0.0}
    first, second = game.running(2, **plan)
    late = game.player(7, **plan).join()
    wait_for("the late node", lambda: late.session._channel)
    assert all_gone([first.leave(0), second.leave(0)])
    assert ended(late) == ("succeeded", 0) and late.rounds == []


def test_a_second_node_of_the_same_number_is_refused(game: Game) -> None:
    game.player(1).join()
    wait_for("the coordinator", lambda: game.players[0].session._channel)
    with pytest.raises(Refused, match="n1 is that node"):
        game.player(1).join().joined()


def test_a_node_with_other_numbers_is_refused_with_both(game: Game) -> None:
    game.player(0).join()
    wait_for("the coordinator", lambda: game.players[0].session._channel)
    both = "n1 was started with --nnodes 3:3 and 1 spares, this job with --nnodes 2:2 and 0 spares"
    with pytest.raises(Refused, match=both):
        game.player(1, min_nodes=3, max_nodes=3, spares=1).join().joined()


def test_a_node_with_another_token_does_not_wait_for_the_deadline(game: Game) -> None:
    game.player(0).join()
    wait_for("the coordinator", lambda: game.players[0].session._channel)
    with pytest.raises(Unreachable, match="not this job's coordinator"):
        game.player(1, token=b"guessed").join().joined()


def test_too_few_nodes_by_the_deadline_are_reported_with_the_missing_hosts(game: Game) -> None:
    player = game.player(0, gather_timeout=0.5, hosts=("n0", "n1")).join()
    assert ended(player) == ("failed", 125)
    assert str(player.error) == "1 of the 2 nodes that the job needs joined within 0.5 s; missing: n1"


def test_a_coordinator_that_does_not_start_is_reported(game: Game) -> None:
    with pytest.raises(Unreachable, match=r"no coordinator within 0\.5 s"):
        game.player(0, is_host=False, gather_timeout=0.5).join().joined()


def test_on_the_endpoint_s_host_the_second_process_joins_the_coordinator_of_the_first(game: Game) -> None:
    first, second = game.player(0, is_host=True).join(), game.player(1, is_host=True).join()
    assert {first.joined().rank, second.joined().rank} == {0, 1}
    assert [first.session._coordinator, second.session._coordinator].count(None) == 1


def test_without_the_coordinator_a_node_is_recalled_and_learns_why(game: Game) -> None:
    first, second = game.running(2)
    coordinator = first.session._coordinator
    assert coordinator is not None
    first.session._loop.call_soon_threadsafe(lambda: [channel.close() for channel in coordinator._channels.values()])
    wait_for("the recall", lambda: second.session.is_recalled)
    with pytest.raises(Unreachable, match="is gone: its connection ended"):
        second.join().joined()


def test_a_node_that_leaves_by_a_signal_is_replaced(game: Game) -> None:
    first, second, spare = game.running(3, **SPARE)
    second.session.withdraw("was ended by SIGTERM")
    wait_for("the recall", lambda: first.session.is_recalled)
    assert (first.join().joined().rank, spare.joined().rank) == (0, 1)


def test_when_the_coordinator_s_node_leaves_by_a_signal_the_others_get_the_reason(game: Game) -> None:
    first, second = game.running(2)
    first.session.withdraw("was ended by SIGTERM")
    assert ended(second.join()) == ("failed", 125)
    assert "n0 was ended by SIGTERM" in str(second.error)


def test_a_spare_that_leaves_does_not_wait_for_the_job(game: Game) -> None:
    first, second, spare = game.running(3, **SPARE)
    assert all_gone([spare.leave(1, "KeyboardInterrupt")])
    assert not first.session.is_recalled
    assert all_gone([first.leave(0), second.leave(0)])
    assert first.session.outcome is not None and first.session.outcome.exit_code == 0
    assert (first.session._recalled, second.session._recalled) == (0, 0)  # all messages before the outcome have arrived


def test_a_coordinator_that_is_no_node_closes_rounds_without_taking_part(game: Game) -> None:
    settings = game.settings(9, **SPARE)
    outcome: list[RunOutcome] = []
    listening = threading.Event()

    def serve() -> None:
        outcome.append(coordinate(settings, lambda: (1, object()), lambda port: listening.set()))

    apart = threading.Thread(target=serve, daemon=True)
    apart.start()
    assert listening.wait(60)
    first, second, spare = (game.player(number, is_host=False, **SPARE).join() for number in range(3))
    assert [player.joined().rank for player in (first, second)] == [0, 1]
    game.drop(first)  # the coordinator is not one of them
    assert [player.join().joined().rank for player in (second,)] == [0] and spare.joined().rank == 1
    assert all_gone([second.leave(0), spare.leave(0), apart])
    assert outcome[0].exit_code == 0 and second.session.outcome == outcome[0]
