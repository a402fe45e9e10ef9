"""The lease of a coordinator and the rounds of its job, and a job that continues after a lost coordinator. Pure."""

from __future__ import annotations

from muster.election.follower import LEADER_SEARCH_TIMEOUT_S
from muster.election.leader_lease import AuthorizeCycle, Broadcast, LeaderLease, LeaseEffect, StepDown
from muster.election.membership import first_membership
from muster.election.timing import LEASE_S
from muster.lifecycle.config import TermStart
from muster.torch.elastic import ElasticJob
from muster.torch.elastic_types import Command, ElasticConfig, EndJob, FormRound, JobState, StartRound
from muster.torch.leased_job import LeasedJob

CONFIG = ElasticConfig(2, 2, spares=1, failover=True)
LOSS = "the coordinator n0 is gone: its connection ended"


class LeasedPlay:
    """The job of a coordinator in term 0 with its lease. The key of a node is also its number."""

    def __init__(self) -> None:
        self.job = ElasticJob(CONFIG, 0.0)
        self.lease = LeaderLease(LeasedJob(self.job), first_membership(CONFIG.expected))

    def arrive(self, *nodes: int) -> list[Command]:
        commands = []
        for node in nodes:
            commands += self.job.arrived(node, f"n{node}", node, 0.0)
            self.lease.joined(node, 0.0, -1, 0.0)
        return commands

    def know(self, *nodes: int, now: float = 0.0) -> list[LeaseEffect]:
        version = self.lease.membership.version
        return [effect for node in nodes for effect in self.lease.answered(node, now, version, now)]


def resumed(*arrived: int, awaited: frozenset[int] = frozenset({1, 2}), round: int = 4) -> ElasticJob:
    """Return the job of a coordinator in term 1, which follows the lost node 0."""
    start = TermStart(term=1, leader=1, cycle=round, excluded=frozenset({0}), reason=LOSS, lost=0)
    job = ElasticJob(CONFIG, 0.0, start, awaited)
    for node in arrived:
        job.arrived(node, f"n{node}", node, 0.0)
    return job


def test_a_round_runs_only_when_every_possible_next_coordinator_knows_its_number() -> None:
    play = LeasedPlay()
    assert play.arrive(0, 1, 2) == [FormRound(1, {0: 0, 1: 1})]
    assert play.lease.cycle_wanted(1, 0.0) == []
    (sent,) = [effect for effect in play.lease.run_changed(0.0) if isinstance(effect, Broadcast)]
    assert (sent.membership.cycle, sent.membership.roster) == (1, {0, 1, 2})
    assert play.job.ready(0, 1, 0.0) == play.job.ready(1, 1, 0.0) == []
    assert AuthorizeCycle(1) in play.know(0, 1)
    assert play.job.authorize(1, 0.0) == [StartRound(1, (0, 1))]


def test_an_authorization_that_comes_first_starts_nothing_until_all_are_ready() -> None:
    play = LeasedPlay()
    play.arrive(0, 1, 2)
    assert play.job.authorize(1, 0.0) == play.job.ready(0, 1, 0.0) == []
    assert play.job.ready(1, 1, 0.0) == [StartRound(1, (0, 1))]


def test_the_authorization_of_an_older_round_does_not_start_a_newer_one() -> None:
    play = LeasedPlay()
    play.arrive(0, 1, 2)
    assert play.job.lost(1, "is gone", 0.0) == [FormRound(2, {0: 0, 2: 1})]
    play.job.ready(0, 2, 0.0)
    play.job.ready(2, 2, 0.0)
    assert play.job.authorize(1, 0.0) == [] and play.job.state is JobState.FORMING
    assert play.job.authorize(2, 0.0) == [StartRound(2, (0, 2))]


def test_a_lost_node_leaves_the_roster_and_is_excluded_until_it_comes_back() -> None:
    play = LeasedPlay()
    play.arrive(0, 1, 2)
    play.lease.run_changed(0.0)
    play.know(0, 1, 2)
    play.job.lost(1, "is gone", 0.0)
    play.lease.run_changed(0.0)
    membership = play.lease.membership
    assert (membership.roster, membership.before, membership.excluded) == ({0, 2}, {0, 1, 2}, {1})
    play.know(0, 2)
    play.job.arrived(7, "n1", 1, 0.0)
    play.lease.run_changed(0.0)
    assert play.lease.membership.roster == {0, 1, 2} and not play.lease.membership.excluded


def test_a_coordinator_without_answers_steps_down_when_its_lease_ends() -> None:
    play = LeasedPlay()
    play.arrive(0, 1, 2)
    play.lease.run_changed(0.0)
    play.know(0, 1, 2)
    assert play.lease.tick(LEASE_S - 0.1) == []
    assert play.lease.tick(LEASE_S) == [StepDown("its lease has expired")]


def test_the_first_round_of_the_next_coordinator_has_the_next_number_and_waits_for_all_that_are_left() -> None:
    job = resumed(1)
    assert job.state is JobState.GATHERING
    assert job.arrived(2, "n2", 2, 0.0) == [FormRound(4, {1: 0, 2: 1})]


def test_the_next_coordinator_waits_for_a_member_until_the_last_call_is_over() -> None:
    job = resumed(1, 2, awaited=frozenset({1, 2, 3}))
    assert job.tick(CONFIG.last_call - 0.1) == []
    assert job.tick(CONFIG.last_call) == [FormRound(4, {1: 0, 2: 1})]


def test_a_member_that_does_not_come_is_not_awaited_longer_than_it_would_search() -> None:
    job = resumed(1)
    assert job.tick(LEADER_SEARCH_TIMEOUT_S - 0.1) == []
    assert job.tick(LEADER_SEARCH_TIMEOUT_S) == [EndJob((1,))]
    assert job.outcome is not None and job.outcome.exit_code == 125
    assert job.outcome.end_reason == f"{LOSS}; 1 of the 2 nodes that the job needs is left"


def test_too_few_nodes_in_the_roster_of_the_lost_coordinator_end_the_job_at_once() -> None:
    job = resumed(1, awaited=frozenset({1}))
    assert job.outcome is not None and job.outcome.end_reason.startswith(LOSS)


def test_a_node_that_finished_under_the_lost_coordinator_ends_the_job() -> None:
    job = resumed(1)
    assert job.arrived_ended(2, "n2", 0, "succeeded") == [EndJob((1, 2))]
    assert job.outcome is not None and job.outcome.exit_code == 125
    assert job.outcome.end_reason == f"{LOSS}; n2 has finished already"


def test_a_node_that_failed_under_the_lost_coordinator_does_not_hide_the_loss() -> None:
    job = resumed(1)
    job.arrived_ended(2, "n2", 3, "the worker of rank 1 exited with 3")
    assert job.outcome is not None and (job.outcome.exit_code, job.outcome.node) == (125, "n2")
    assert job.outcome.end_reason == f"{LOSS}; then n2: the worker of rank 1 exited with 3"
    assert job.arrived_ended(3, "n3", 0, "") == [EndJob((3,))]  # the first end stands
