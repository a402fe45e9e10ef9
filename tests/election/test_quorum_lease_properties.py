"""Leaders, rosters and elections in any order, without a network: every possible election is tried at each step.

The simulator tries the effects of a network and its faults; this tries all subsets of the members.
"""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster.election.campaign import Campaign
from muster.election.membership import Membership, first_membership
from muster.election.quorum_lease import QuorumLease
from muster.election.timing import FENCE_S, LEASE_S

MOST_NODES = 7
RANKS = st.integers(0, MOST_NODES - 1)
SOME = st.sets(RANKS, max_size=MOST_NODES)


class Elections(RuleBasedStateMachine):
    """A sequence of leaders. Members that have not answered for long enough may join others."""

    @initialize(nodes=st.integers(3, MOST_NODES))
    def begin(self, nodes: int) -> None:
        self.nodes, self.now = nodes, 0.0
        self.leader, self.quorum = 0, QuorumLease(first_membership(nodes))
        self.known = dict.fromkeys(range(nodes), self.quorum.membership)
        self.answered: dict[int, float] = {}  # to the current leader, by the members that joined it
        self.dead: set[int] = set()
        self.acts = False

    def others(self, ranks: set[int]) -> list[int]:
        return sorted({rank % self.nodes for rank in ranks} - {self.leader} - self.dead)

    def free(self) -> list[int]:
        """Return the members that may join another leader."""
        ready = (rank for rank in self.known if self.now >= self.answered.get(rank, -FENCE_S) + FENCE_S)
        return [rank for rank in ready if rank != self.leader and rank not in self.dead]

    def hear(self, rank: int) -> None:
        self.answered[rank] = self.now
        self.quorum.answered(rank, self.now, self.known[rank].version)

    # -- rules --------------------------------------------------------------------------------------------------

    @rule(ranks=SOME)
    def some_answer_a_heartbeat(self, ranks: set[int]) -> None:
        for rank in self.others(ranks):
            self.hear(rank)

    @rule(ranks=SOME)
    def some_learn_the_membership_without_reporting_it(self, ranks: set[int]) -> None:
        for rank in self.others(ranks):
            self.known[rank] = self.quorum.membership

    @rule(ranks=SOME)
    def some_learn_the_membership_and_report_it(self, ranks: set[int]) -> None:
        for rank in self.others(ranks):
            self.known[rank] = self.quorum.membership
            self.hear(rank)

    @rule(ranks=SOME)
    def another_roster_is_proposed(self, ranks: set[int]) -> None:
        self.quorum.propose([self.leader, *self.others(ranks)], (), self.quorum.membership.cycle)

    @rule(rank=RANKS)
    def a_process_ends(self, rank: int) -> None:
        if rank < self.nodes and rank != self.leader:
            self.dead.add(rank)
            self.quorum.died(rank)

    @rule(seconds=st.sampled_from([1.0, LEASE_S, FENCE_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if self.acts and self.quorum.expires_at() <= self.now:
            self.acts = False
            self.quorum = QuorumLease(self.quorum.membership)  # fenced: it leaves

    @rule()
    def the_leader_begins_to_act(self) -> None:
        self.acts = self.acts or self.quorum.acquire(self.now)

    @rule(choice=st.integers(0, 1000))
    def another_leader_is_elected(self, choice: int) -> None:
        winners = self.winners(self.free())
        if self.acts or not winners:
            return
        joiners = winners[choice % len(winners)]
        candidacy = self.candidacy(joiners)
        self.dead.add(self.leader)
        self.leader, self.quorum = candidacy._node_index, QuorumLease(candidacy.new_membership())
        self.answered = {}
        for rank in joiners:
            self.known[self.leader] = self.quorum.membership
            self.hear(rank)

    # -- invariants --------------------------------------------------------------------------------------------

    def candidacy(self, joiners: tuple[int, ...]) -> Campaign:
        """Return the campaign of one of them that their newest membership lists, if there is one."""
        newest = max((self.known[rank] for rank in joiners), key=lambda membership: membership.version)
        rank = next((rank for rank in joiners if rank in newest.roster), joiners[0])
        candidacy = Campaign(self.quorum.membership.term + 1, rank, self.known[rank])
        for joiner in joiners:
            candidacy.add(joiner, self.known[joiner], 0.0)
        return candidacy

    def winners(self, ranks: list[int]) -> list[tuple[int, ...]]:
        subsets = chain.from_iterable(combinations(ranks, size) for size in range(1, len(ranks) + 1))
        return [subset for subset in subsets if self.candidacy(subset).won]

    @invariant()
    def no_candidate_can_be_elected_while_a_leader_acts(self) -> None:
        if self.acts and self.quorum.expires_at() > self.now:
            assert not self.winners(self.free())

    @invariant()
    def no_two_candidates_can_be_elected_by_different_members(self) -> None:
        winners = [set(subset) for subset in self.winners(self.free())]
        assert all(one & other for one, other in combinations(winners, 2))


TestElectionsInAnyOrder = Elections.TestCase
TestElectionsInAnyOrder.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


UNSHRUNK = settings(
    max_examples=3000, stateful_step_count=25, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
)


def test_counting_only_the_newest_roster_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Membership, "rosters", property(lambda self: (self.roster,)))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Elections, settings=UNSHRUNK)
