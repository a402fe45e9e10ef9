"""The protocol of a torchrun job: who takes part in which round, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.torch.elastic import FORM_TIMEOUT_S, ElasticJob
from muster.torch.elastic_types import CallBack, Command, ElasticPlan, End, Form, Go, JobState, Refuse


class Play:
    """A job whose nodes obey; `now` is moved by hand. Nodes are called by their key, which is also their number."""

    def __init__(self, least: int, most: int | None = None, **plan: Any) -> None:
        self.job = ElasticJob(ElasticPlan(least, most or least, **plan), 0.0)
        self.now = 0.0
        self.said: list[Command] = []

    def __getattr__(self, event: str) -> Any:
        def happen(*words: Any) -> list[Command]:
            commands: list[Command] = getattr(self.job, event)(*words, self.now)
            self.said += commands
            return commands

        return happen

    def arrive(self, *keys: int) -> list[Command]:
        return [command for key in keys for command in self.arrived(key, f"n{key}", key)]

    def wait(self, seconds: float) -> list[Command]:
        self.now += seconds
        commands: list[Command] = self.tick()
        return commands

    def all_ready(self) -> list[Command]:
        return [command for key in self.ranks for command in self.ready(key, self.job.round)]

    def run(self, *keys: int) -> Play:
        """These arrive, and the round runs."""
        self.arrive(*keys)
        if self.job.state is JobState.GATHERING:
            self.wait(self.job.plan.last_call)
        self.all_ready()
        assert self.job.state is JobState.RUNNING
        return self

    @property
    def ranks(self) -> dict[int, int]:
        """Of the last round that closed."""
        return next(command.ranks for command in reversed(self.said) if isinstance(command, Form))

    @property
    def reason(self) -> str:
        assert self.job.outcome is not None
        return self.job.outcome.end_reason


# -- a round closes ---------------------------------------------------------------------------------------------


def test_a_round_closes_when_everybody_is_there_and_runs_when_everybody_is_ready() -> None:
    play = Play(2)
    assert play.arrive(2) == []
    assert play.arrive(1) == [Form(1, {1: 0, 2: 1})]
    assert play.ready(1, 1) == []
    assert play.ready(2, 1) == [Go(1, (1, 2))]


def test_ranks_and_spares_follow_the_numbers_of_the_nodes_not_their_arrival() -> None:
    play = Play(2, spares=2)
    play.arrive(7, 3, 9, 1)
    assert play.ranks == {1: 0, 3: 1}


def test_nodes_without_a_number_are_ordered_by_their_hosts_and_n2_is_before_n10() -> None:
    play = Play(3)
    for key, host in enumerate(["n10", "n2", "m1"]):
        play.arrived(key, host, None)
    assert play.ranks == {2: 0, 1: 1, 0: 2}


def test_enough_nodes_wait_for_the_others_until_the_last_call_is_over() -> None:
    play = Play(2, spares=1, last_call=5.0)
    assert play.arrive(2, 3) == [] and play.wait(4.9) == []
    assert play.wait(0.1) == [Form(1, {2: 0, 3: 1})]


def test_within_the_last_call_a_lower_node_still_gets_its_rank() -> None:
    play = Play(2, spares=1)
    play.arrive(2, 3)
    play.wait(3)
    play.arrive(1)
    assert play.ranks == {1: 0, 2: 1}


def test_nodes_beyond_the_wanted_number_are_spares_and_no_error() -> None:
    play = Play(2).run(1, 2)
    assert play.arrive(3, 4) == [] and play.job.state is JobState.RUNNING


def test_a_node_that_is_late_is_a_spare_and_does_not_break_the_round() -> None:
    play = Play(2, spares=1).run(2, 3)
    assert play.arrive(1) == [] and play.ranks == {2: 0, 3: 1}


def test_a_second_node_of_the_same_number_is_refused_by_name() -> None:
    play = Play(2)
    play.arrive(1)
    assert play.arrived(5, "other", 1) == [Refuse(5, "n1 is node 1 already; other cannot be that too")]


def test_a_node_that_died_and_was_started_again_is_let_in() -> None:
    play = Play(2, rejoin=60.0)
    play.arrive(1)
    play.lost(1, "is gone")
    play.arrived(8, "n1", 1)
    play.arrive(2)
    assert play.ranks == {8: 0, 2: 1}


def test_a_node_that_died_after_it_arrived_gets_no_rank() -> None:
    play = Play(2, spares=1)
    play.arrive(1, 2)
    play.lost(1, "is gone")
    play.arrive(3)
    assert play.ranks == {2: 0, 3: 1}


def test_a_node_lost_while_the_round_forms_is_replaced_before_anybody_starts_workers() -> None:
    play = Play(2, spares=1)
    play.arrive(1, 2, 3)
    play.ready(1, 1)
    assert play.lost(2, "fell silent") == [Form(2, {1: 0, 3: 1})]
    assert play.ready(1, 1) == []  # a word about the older round
    assert play.all_ready() == [Go(2, (1, 3))]


def test_a_node_that_is_not_ready_in_time_is_dropped_and_a_spare_takes_part() -> None:
    play = Play(2, spares=1)
    play.arrive(1, 2, 3)
    play.ready(1, 1)
    refused, formed = play.wait(FORM_TIMEOUT_S)
    assert isinstance(refused, Refuse) and refused.key == 2
    assert formed == Form(2, {1: 0, 3: 1})


def test_too_few_nodes_by_the_deadline_end_the_job_and_the_missing_are_named() -> None:
    play = Play(3, gather_timeout=60.0, hosts=("n1", "n2", "n3", "n4"))
    play.arrive(1, 3)
    assert play.wait(60) == [End((1, 3))]
    assert play.reason == "2 of the 3 nodes that the job needs came within 60 s; missing: n2, n4"
    assert play.job.outcome is not None and play.job.outcome.exit_code == 125


def test_enough_nodes_at_the_deadline_are_a_round() -> None:
    play = Play(2, spares=1, last_call=100.0, gather_timeout=60.0)
    play.arrive(1, 2)
    assert play.wait(60) == [Form(1, {1: 0, 2: 1})]


# -- a round is over --------------------------------------------------------------------------------------------


def test_a_lost_node_calls_the_others_back_and_a_spare_takes_part() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert play.lost(2, "is gone") == [CallBack(1, (1,), "n2 is gone")]
    assert play.back(1) == [Form(2, {1: 0, 3: 1})]


def test_a_lost_spare_restarts_nothing() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert play.lost(3, "is gone") == [] and play.job.state is JobState.RUNNING


def test_a_waiting_spare_restarts_nothing() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert all(play.wait(10) == [] for _ in range(20))


def test_workers_that_failed_and_begin_again_call_the_others_back() -> None:
    play = Play(2).run(1, 2)
    assert play.back(2) == [CallBack(1, (1,), "the workers of n2 failed; it begins again")]
    assert play.back(1) == [Form(2, {1: 0, 2: 1})]


def test_within_the_last_call_a_spare_does_not_take_the_place_of_a_slow_member_and_after_it_it_does() -> None:
    play = Play(2, spares=1, last_call=5.0).run(1, 2, 3)
    play.back(2)
    assert play.wait(4) == []
    assert play.wait(1) == [Form(2, {2: 0, 3: 1})]
    assert play.back(1) == []  # from now on it is a spare


def test_a_slow_member_that_is_back_within_the_last_call_keeps_its_place() -> None:
    play = Play(2, spares=1, last_call=5.0).run(1, 2, 3)
    play.back(2)
    play.wait(4)
    assert play.back(1) == [Form(2, {1: 0, 2: 1})]


def test_without_enough_nodes_the_end_is_at_once_by_name() -> None:
    play = Play(2).run(1, 2)
    assert play.lost(2, "is gone: its connection ended")[-1] == End((1,))
    assert play.job.outcome is not None and play.job.outcome.exit_code == 125
    assert play.reason == "n2 is gone: its connection ended; 1 of the 2 nodes that the job needs is left"


def test_a_job_that_may_wait_for_new_nodes_does() -> None:
    play = Play(2, rejoin=30.0).run(1, 2)
    play.lost(2, "is gone")
    play.back(1)
    play.wait(20)
    assert play.arrived(9, "n2", 2) == [Form(2, {1: 0, 9: 1})]


def test_a_job_that_waited_for_new_nodes_in_vain_ends() -> None:
    play = Play(2, rejoin=30.0).run(1, 2)
    play.lost(2, "is gone")
    play.back(1)
    assert play.wait(30) == [End((1,))]


def test_an_elastic_job_goes_on_with_fewer_nodes_and_lets_a_new_one_in() -> None:
    play = Play(1, 2).run(1, 2)
    play.lost(2, "is gone")
    assert play.back(1) == [Form(2, {1: 0})]
    play.all_ready()
    assert play.arrive(3) == [CallBack(2, (1,), "there is room for n3")]
    assert play.back(1) == [Form(3, {1: 0, 3: 1})]


# -- the end ----------------------------------------------------------------------------------------------------


def test_the_job_succeeds_when_all_nodes_of_the_round_have_finished_and_spares_are_told() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert play.finished(1) == []
    assert play.finished(2) == [End((1, 2, 3))]
    assert play.job.outcome is not None and play.job.outcome.exit_code == 0


def test_the_first_failure_stands_and_everybody_is_told() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert play.failed(2, 3, "the worker of rank 1 exited with 3") == [End((1, 2, 3))]
    assert play.failed(1, 9, "the worker of rank 0 exited with 9") == [] and play.finished(1) == []
    assert play.job.outcome is not None
    assert (play.job.outcome.exit_code, play.reason) == (3, "n2: the worker of rank 1 exited with 3")


def test_workers_that_fail_because_a_node_was_lost_do_not_hide_the_loss() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    play.lost(2, "is gone")
    play.failed(1, 1, "the worker of rank 0 exited with 1")
    assert play.job.outcome is not None
    assert (play.job.outcome.exit_code, play.reason) == (
        125,
        "n2 is gone; then n1: the worker of rank 0 exited with 1",
    )


def test_a_spare_that_fails_by_itself_is_a_lost_spare() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert play.failed(3, 1, "KeyboardInterrupt") == [] and play.job.state is JobState.RUNNING


def test_who_comes_when_all_is_over_is_told_how_it_ended() -> None:
    play = Play(1).run(1)
    play.finished(1)
    assert play.arrive(2) == [End((2,))]


@pytest.mark.parametrize("event", ["lost", "back"])
def test_a_round_in_which_somebody_has_finished_cannot_be_had_again(event: str) -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    play.finished(1)
    commands = play.lost(2, "is gone") if event == "lost" else play.back(2)
    assert isinstance(commands[-1], End) and play.job.outcome is not None and play.job.outcome.exit_code == 125
    assert "n1 has finished already" in play.reason


def test_nodes_that_finish_although_they_were_called_back_have_succeeded() -> None:
    play = Play(1, 3, spares=0, last_call=5.0).run(1, 2)
    play.arrive(3)
    play.finished(1)
    assert play.finished(2) == [End((1, 2, 3))]
    assert play.job.outcome is not None and play.job.outcome.exit_code == 0


def test_without_the_coordinator_s_own_node_there_is_no_job() -> None:
    play = Play(1, spares=1).run(1, 2)
    play.job.leader = 2  # a spare, even
    assert play.lost(2, "was ended by SIGTERM") == [End((1,))]
    assert play.job.outcome is not None and play.job.outcome.exit_code == 125


# -- whatever happens -------------------------------------------------------------------------------------------

KINDS = ["arrive", "back", "ready", "finished", "failed", "lost", "wait"]
EVENTS = st.tuples(st.sampled_from(KINDS), st.integers(0, 5))


@given(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.lists(EVENTS, max_size=60))
def test_in_any_order_of_events_rounds_are_sound_and_there_is_one_end(
    least: int, more: int, spares: int, events: list[tuple[str, int]]
) -> None:
    play = Play(least, least + more, spares=spares, gather_timeout=50.0)
    outcomes, closed = [], 0
    for event, node in events:
        connected = {member.key for member in play.job.members.values()}
        if event == "arrive":
            commands = play.arrive(node) if node not in connected else []
        elif event == "wait":
            commands = play.wait(float(node))
        elif event == "ready":
            commands = play.ready(node, play.job.round)
        elif event == "failed":
            commands = play.failed(node, 1 + node, "failed")
        elif event == "lost":
            commands = play.lost(node, "is gone")
        else:
            commands = getattr(play, event)(node)
        connected = set(play.job.members)
        for command in commands:
            if isinstance(command, Form):
                assert command.round > closed and set(command.ranks) <= connected
                closed = command.round
                assert sorted(command.ranks.values()) == list(range(len(command.ranks)))
                assert least <= len(command.ranks) <= least + more
            elif isinstance(command, End) and play.job.outcome not in outcomes:
                outcomes.append(play.job.outcome)
                assert set(command.keys) == connected
    assert len(outcomes) == (play.job.state is JobState.ENDED)
