"""Leaders, rosters and elections in any order, without a network: every possible election is tried at each step.

The simulator tries the effects of a network and its faults; this tries all subsets of the members.
"""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster.election.candidate import Candidacy, Win
from muster.election.membership import Membership, first_membership
from muster.election.quorum_lease import QuorumLease
from muster.election.timing import FENCE_S, LEASE_S

MOST_NODES = 7
NODE_INDEXES = st.integers(0, MOST_NODES - 1)
SOME = st.sets(NODE_INDEXES, max_size=MOST_NODES)


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

    def others(self, node_indexes: set[int]) -> list[int]:
        return sorted({node_index % self.nodes for node_index in node_indexes} - {self.leader} - self.dead)

    def free(self) -> list[int]:
        """Return the members that may join another leader."""
        ready = (
            node_index for node_index in self.known if self.now >= self.answered.get(node_index, -FENCE_S) + FENCE_S
        )
        return [node_index for node_index in ready if node_index != self.leader and node_index not in self.dead]

    def hear(self, node_index: int) -> None:
        self.answered[node_index] = self.now
        self.quorum.answered(node_index, self.now, self.known[node_index].version)

    # -- rules --------------------------------------------------------------------------------------------------

    @rule(node_indexes=SOME)
    def some_answer_a_heartbeat(self, node_indexes: set[int]) -> None:
        for node_index in self.others(node_indexes):
            self.hear(node_index)

    @rule(node_indexes=SOME)
    def some_learn_the_membership_without_reporting_it(self, node_indexes: set[int]) -> None:
        for node_index in self.others(node_indexes):
            self.known[node_index] = self.quorum.membership

    @rule(node_indexes=SOME)
    def some_learn_the_membership_and_report_it(self, node_indexes: set[int]) -> None:
        for node_index in self.others(node_indexes):
            self.known[node_index] = self.quorum.membership
            self.hear(node_index)

    @rule(node_indexes=SOME)
    def another_roster_is_proposed(self, node_indexes: set[int]) -> None:
        self.quorum.propose([self.leader, *self.others(node_indexes)], (), self.quorum.membership.cycle)

    @rule(node_index=NODE_INDEXES)
    def a_process_ends(self, node_index: int) -> None:
        if node_index < self.nodes and node_index != self.leader:
            self.dead.add(node_index)
            self.quorum.died(node_index)

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
        win = self.win(joiners)
        assert win is not None
        self.dead.add(self.leader)
        self.leader, self.quorum = win.term_start.leader, QuorumLease(win.membership)
        self.answered = {}
        for node_index in joiners:
            self.known[self.leader] = self.quorum.membership
            self.hear(node_index)

    # -- invariants --------------------------------------------------------------------------------------------

    def win(self, joiners: tuple[int, ...]) -> Win | None:
        """Return the win of one of them that their newest membership lists, if these members are enough."""
        newest = max((self.known[node_index] for node_index in joiners), key=lambda membership: membership.version)
        node_index = next((node_index for node_index in joiners if node_index in newest.roster), joiners[0])
        candidacy = Candidacy(self.quorum.membership.term + 1, node_index, self.known[node_index], "")
        for joiner in joiners:
            candidacy.joined(joiner, self.known[joiner], 0.0)
        return next((effect for effect in candidacy.claimed(0.0) if isinstance(effect, Win)), None)

    def winners(self, node_indexes: list[int]) -> list[tuple[int, ...]]:
        subsets = chain.from_iterable(combinations(node_indexes, size) for size in range(1, len(node_indexes) + 1))
        return [subset for subset in subsets if self.win(subset) is not None]

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
