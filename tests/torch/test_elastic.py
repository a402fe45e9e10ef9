"""The state machine of a torchrun job: the nodes of each round, and the end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.torch.elastic import FORM_TIMEOUT_S, ElasticJob
from muster.torch.elastic_types import Command, ElasticConfig, EndJob, FormRound, JobState, Recall, Refuse, StartRound


class Play:
    """A job and its clock. The key of a node is also its number."""

    def __init__(self, min_nodes: int, max_nodes: int | None = None, **plan: Any) -> None:
        self.job = ElasticJob(ElasticConfig(min_nodes, max_nodes or min_nodes, **plan), 0.0)
        self.now = 0.0
        self.commands: list[Command] = []

    def __getattr__(self, event: str) -> Any:
        def happen(*words: Any) -> list[Command]:
            commands: list[Command] = getattr(self.job, event)(*words, self.now)
            self.commands += commands
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
        """Let these nodes arrive, and start the round."""
        self.arrive(*keys)
        if self.job.state is JobState.GATHERING:
            self.wait(self.job.config.last_call)
        self.all_ready()
        assert self.job.state is JobState.RUNNING
        return self

    @property
    def ranks(self) -> dict[int, int]:
        """The ranks of the last round that closed."""
        return next(command.ranks for command in reversed(self.commands) if isinstance(command, FormRound))

    @property
    def reason(self) -> str:
        assert self.job.outcome is not None
        return self.job.outcome.end_reason


# -- a round closes ---------------------------------------------------------------------------------------------


def test_a_round_closes_when_all_nodes_arrived_and_runs_when_all_are_ready() -> None:
    play = Play(2)
    assert play.arrive(2) == []
    assert play.arrive(1) == [FormRound(1, {1: 0, 2: 1})]
    assert play.ready(1, 1) == []
    assert play.ready(2, 1) == [StartRound(1, (1, 2))]


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
    assert play.wait(0.1) == [FormRound(1, {2: 0, 3: 1})]


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


def test_a_second_node_of_the_same_number_is_refused() -> None:
    play = Play(2)
    play.arrive(1)
    assert play.arrived(5, "other", 1) == [Refuse(5, "other cannot join as node 1: n1 is that node")]


def test_a_node_that_died_and_was_restarted_is_admitted() -> None:
    play = Play(2, rejoin_timeout=60.0)
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


def test_a_node_lost_while_the_round_forms_is_replaced_before_any_worker_starts() -> None:
    play = Play(2, spares=1)
    play.arrive(1, 2, 3)
    play.ready(1, 1)
    assert play.lost(2, "fell silent") == [FormRound(2, {1: 0, 3: 1})]
    assert play.ready(1, 1) == []  # a word about the older round
    assert play.all_ready() == [StartRound(2, (1, 3))]


def test_a_node_that_is_not_ready_in_time_is_dropped_and_a_spare_takes_part() -> None:
    play = Play(2, spares=1)
    play.arrive(1, 2, 3)
    play.ready(1, 1)
    refused, formed = play.wait(FORM_TIMEOUT_S)
    assert isinstance(refused, Refuse) and refused.key == 2
    assert formed == FormRound(2, {1: 0, 3: 1})


def test_too_few_nodes_by_the_deadline_end_the_job_and_the_missing_are_named() -> None:
    play = Play(3, gather_timeout=60.0, hosts=("n1", "n2", "n3", "n4"))
    play.arrive(1, 3)
    assert play.wait(60) == [EndJob((1, 3))]
    assert play.reason == "2 of the 3 nodes that the job needs joined within 60 s; missing: n2, n4"
    assert play.job.outcome is not None and play.job.outcome.exit_code == 125


def test_enough_nodes_at_the_deadline_are_a_round() -> None:
    play = Play(2, spares=1, last_call=100.0, gather_timeout=60.0)
    play.arrive(1, 2)
    assert play.wait(60) == [FormRound(1, {1: 0, 2: 1})]


# -- a round is over --------------------------------------------------------------------------------------------


def test_a_lost_node_recalls_the_others_and_a_spare_takes_part() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert play.lost(2, "is gone") == [Recall(1, (1,), "n2 is gone")]
    assert play.returned(1) == [FormRound(2, {1: 0, 3: 1})]


def test_a_lost_spare_restarts_nothing() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert play.lost(3, "is gone") == [] and play.job.state is JobState.RUNNING


def test_a_waiting_spare_restarts_nothing() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert all(play.wait(10) == [] for _ in range(20))


def test_workers_that_failed_and_restart_recall_the_others() -> None:
    play = Play(2).run(1, 2)
    assert play.returned(2) == [Recall(1, (1,), "the workers of n2 failed; it restarts them")]
    assert play.returned(1) == [FormRound(2, {1: 0, 2: 1})]


def test_within_the_last_call_a_spare_does_not_take_the_place_of_a_slow_member_and_after_it_it_does() -> None:
    play = Play(2, spares=1, last_call=5.0).run(1, 2, 3)
    play.returned(2)
    assert play.wait(4) == []
    assert play.wait(1) == [FormRound(2, {2: 0, 3: 1})]
    assert play.returned(1) == []  # from now on it is a spare


def test_a_slow_member_that_is_back_within_the_last_call_keeps_its_place() -> None:
    play = Play(2, spares=1, last_call=5.0).run(1, 2, 3)
    play.returned(2)
    play.wait(4)
    assert play.returned(1) == [FormRound(2, {1: 0, 2: 1})]


def test_without_enough_nodes_the_job_ends_at_once() -> None:
    play = Play(2).run(1, 2)
    assert play.lost(2, "is gone: its connection ended")[-1] == EndJob((1,))
    assert play.job.outcome is not None and play.job.outcome.exit_code == 125
    assert play.reason == "n2 is gone: its connection ended; 1 of the 2 nodes that the job needs is left"


def test_a_job_that_may_wait_for_new_nodes_does() -> None:
    play = Play(2, rejoin_timeout=30.0).run(1, 2)
    play.lost(2, "is gone")
    play.returned(1)
    play.wait(20)
    assert play.arrived(9, "n2", 2) == [FormRound(2, {1: 0, 9: 1})]


def test_a_job_that_waited_for_new_nodes_in_vain_ends() -> None:
    play = Play(2, rejoin_timeout=30.0).run(1, 2)
    play.lost(2, "is gone")
    play.returned(1)
    assert play.wait(30) == [EndJob((1,))]


def test_an_elastic_job_continues_with_fewer_nodes_and_admits_a_new_one() -> None:
    play = Play(1, 2).run(1, 2)
    play.lost(2, "is gone")
    assert play.returned(1) == [FormRound(2, {1: 0})]
    play.all_ready()
    assert play.arrive(3) == [Recall(2, (1,), "there is room for n3")]
    assert play.returned(1) == [FormRound(3, {1: 0, 3: 1})]


# -- the end ----------------------------------------------------------------------------------------------------


def test_the_job_succeeds_when_all_nodes_of_the_round_have_finished_and_spares_get_the_outcome() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert play.finished(1) == []
    assert play.finished(2) == [EndJob((1, 2, 3))]
    assert play.job.outcome is not None and play.job.outcome.exit_code == 0


def test_the_first_failure_is_kept_and_sent_to_all_nodes() -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    assert play.failed(2, 3, "the worker of rank 1 exited with 3") == [EndJob((1, 2, 3))]
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


def test_a_node_that_arrives_after_the_end_gets_the_outcome() -> None:
    play = Play(1).run(1)
    play.finished(1)
    assert play.arrive(2) == [EndJob((2,))]


@pytest.mark.parametrize("event", ["lost", "returned"])
def test_a_round_in_which_a_node_has_finished_cannot_be_repeated(event: str) -> None:
    play = Play(2, spares=1).run(1, 2, 3)
    play.finished(1)
    commands = play.lost(2, "is gone") if event == "lost" else play.returned(2)
    assert isinstance(commands[-1], EndJob) and play.job.outcome is not None and play.job.outcome.exit_code == 125
    assert "n1 has finished already" in play.reason


def test_nodes_that_finish_although_they_were_recalled_have_succeeded() -> None:
    play = Play(1, 3, spares=0, last_call=5.0).run(1, 2)
    play.arrive(3)
    play.finished(1)
    assert play.finished(2) == [EndJob((1, 2, 3))]
    assert play.job.outcome is not None and play.job.outcome.exit_code == 0


def test_the_loss_of_the_coordinator_s_node_ends_the_job() -> None:
    play = Play(1, spares=1).run(1, 2)
    play.job.coordinator = 2  # a spare
    assert play.lost(2, "was ended by SIGTERM") == [EndJob((1,))]
    assert play.job.outcome is not None and play.job.outcome.exit_code == 125


# -- any order -------------------------------------------------------------------------------------------------

KINDS = ["arrive", "returned", "ready", "finished", "failed", "lost", "wait"]
EVENTS = st.tuples(st.sampled_from(KINDS), st.integers(0, 5))


@given(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.lists(EVENTS, max_size=60))
def test_in_any_order_of_events_rounds_are_sound_and_there_is_one_end(
    min_nodes: int, more: int, spares: int, events: list[tuple[str, int]]
) -> None:
    play = Play(min_nodes, min_nodes + more, spares=spares, gather_timeout=50.0)
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
            if isinstance(command, FormRound):
                assert command.round > closed and set(command.ranks) <= connected
                closed = command.round
                assert sorted(command.ranks.values()) == list(range(len(command.ranks)))
                assert min_nodes <= len(command.ranks) <= min_nodes + more
            elif isinstance(command, EndJob) and play.job.outcome not in outcomes:
                outcomes.append(play.job.outcome)
                assert set(command.keys) == connected
    assert len(outcomes) == (play.job.state is JobState.ENDED)
