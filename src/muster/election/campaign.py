"""How the members of a run that lost its leader elect another one. No I/O, no clock, no randomness.

A member without a leader polls the claims in the run directory and decides:

    its state                                              decision
    processes of the old term left, or not fenced yet      wait
    a newer claim that it has not tried                    join that candidate
    its turn has come, by its node number                  claim the next term
    no candidate got a majority for a long time            leave

A claim is one atomic link, so a term has at most one candidate. A candidate leads once more than half of the newest
roster known to its members have joined it (and of the previous roster, until the newest is known to be in force). A
candidate that does not get this majority retires, and its members need no fence against it. Excluded nodes are never
candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Union

from muster.election.membership import VERSIONS_PER_TERM, Membership
from muster.election.quorum_lease import majority
from muster.election.timing import FENCE_S
from muster.lifecycle.config import TermStart

CLAIM_STAGGER_S = 2.0  # between the turns of two members, so that usually one candidate gets all members
ELECTION_TIMEOUT_S = 15.0  # in which a candidate must get its majority
LEADER_SEARCH_TIMEOUT_S = 60.0  # in which a fenced member must find a leader


@dataclass(frozen=True)
class Wait:
    """Poll again later."""


@dataclass(frozen=True)
class Join:
    """Join the candidate of this term."""

    term: int


@dataclass(frozen=True)
class Claim:
    """Claim this term."""

    term: int


@dataclass(frozen=True)
class Leave:
    """Leave: no candidate can get a majority."""


MemberDecision = Union[Wait, Join, Claim, Leave]


class Election:
    """One member's view of an election, from the loss of its leader until it follows or becomes the next one."""

    def __init__(self, node_index: int, membership: Membership, now: float, last_answer: float | None) -> None:
        """`last_answer`: time of this member's last message to its leader; None if it sent none or was released."""
        self._node_index, self._membership = node_index, membership
        self._term = membership.term  # the highest term that failed
        self._failed_leaders = {membership.leader}
        self.fenced_at = now if last_answer is None else max(now, last_answer + FENCE_S)
        self._turns_start = self.fenced_at
        self._deadline = self.fenced_at + LEADER_SEARCH_TIMEOUT_S
        self._turn: int | None = None  # cached

    def decide(self, now: float, clean: bool, claims: Mapping[int, int]) -> MemberDecision:
        """Decide the next step.

        `clean`: no process of the old term runs on this node. `claims`: the number of the node that claimed each term.
        """
        if not clean or now < self.fenced_at:
            return Wait()
        untried = [term for term in claims if term > self._term and claims[term] not in self._membership.excluded]
        if untried:
            return Join(max(untried))
        if now >= self._deadline:
            return Leave()
        voter = self._node_index in self._membership.roster
        if voter and now >= self._turns_start + self._claim_turn() * CLAIM_STAGGER_S:
            return Claim(max([self._term, *claims]) + 1)
        return Wait()

    def candidate_failed(self, term: int, leader: int, now: float, last_answer: float | None) -> None:
        """Record that the candidate of this term was unreachable, was lost, or retired (then `last_answer` is None)."""
        self._term = max(self._term, term)
        self._failed_leaders.add(leader)
        self._turn = None
        if last_answer is not None:
            self.fenced_at = max(self.fenced_at, last_answer + FENCE_S)
        self._turns_start = max(now, self.fenced_at)

    def _claim_turn(self) -> int:
        """Return this member's position: by node number, failed leaders last. Positions past the deadline are cut."""
        if self._turn is None:
            ours = (self._node_index in self._failed_leaders, self._node_index)
            before = (node for node in self._membership.roster if (node in self._failed_leaders, node) < ours)
            self._turn = sum(1 for _ in islice(before, int(LEADER_SEARCH_TIMEOUT_S / CLAIM_STAGGER_S) + 1))
        return self._turn


class Campaign:
    """A candidate's term: the members that have joined it and the newest membership among them."""

    def __init__(self, term: int, node_index: int, membership: Membership) -> None:
        self.term, self._node_index = term, node_index
        self.membership = membership  # the newest known to any member
        self.joined: dict[int, float] = {}  # time of our last message to each before it joined
        self._votes: list[int] = []  # number of joined members in each roster; kept since ten thousand may join
        self._count()

    def add(self, node_index: int, membership: Membership, last_sent: float) -> None:
        new, before = node_index not in self.joined, self.membership
        self.joined[node_index] = last_sent
        self.membership = before.newer(membership)
        if self.membership.version != before.version:
            self._count()
        elif new:
            rosters = self.membership.rosters
            self._votes = [votes + (node_index in roster) for votes, roster in zip(self._votes, rosters)]

    def remove(self, node_index: int) -> None:
        if self.joined.pop(node_index, None) is not None:
            self._count()

    def _count(self) -> None:
        self._votes = [len(roster.intersection(self.joined)) for roster in self.membership.rosters]

    @property
    def won(self) -> bool:
        eligible = self._node_index in self.joined and self._node_index in self.membership.roster
        return eligible and all(majority(votes, roster) for votes, roster in zip(self._votes, self.membership.rosters))

    def term_start(self, reason: str) -> TermStart:
        """Return the state in which the new leader starts. The lost leader is excluded."""
        lost = self.membership.leader
        excluded = (self.membership.excluded | {lost}) - {self._node_index}
        return TermStart(self.term, self._node_index, self.membership.cycle + 1, excluded, reason, lost)

    def new_membership(self) -> Membership:
        """Return the first membership of the new term. Its roster is the old one, until another is in force."""
        start, version, old = self.term_start(""), self.term * VERSIONS_PER_TERM, self.membership
        return Membership(self.term, self._node_index, start.cycle, version, old.roster, start.excluded, old.before)
