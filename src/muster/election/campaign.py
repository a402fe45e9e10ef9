"""How the members of a run that has lost its leader come to another one. No I/O, no clock, no randomness.

A member without a leader looks at the claims in the run directory and does one of these:

    its state                                              it does
    not clean of the old term's processes, or not fenced   waits
    a newer claim that it has not tried                    joins that candidate
    its turn has come, by its number                       claims the next term
    nobody has got a majority for long                     leaves

A claim is one atomic link, so a term has at most one candidate; a candidate leads once more than half of the newest
roster that its joiners know have joined it (and of the one before, while that roster is not known to be in force). It
retires when they do not come; its joiners owe it nothing then. A node that was excluded is nobody's candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Union

from muster.election.membership import FENCE_S, VERSIONS, Membership
from muster.election.quorum_lease import majority
from muster.lifecycle.config import TermStart

TURN_S = 2.0  # between the turns of two members to claim
ELECT_S = 15.0  # how long a candidate waits for its majority
GIVE_UP_S = 60.0  # how long a member that may join somebody looks for a leader


@dataclass(frozen=True)
class Wait:
    """Look again in a moment."""


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
    """There is no majority for anybody."""


Decision = Union[Wait, Join, Claim, Leave]


class Election:
    """One member's way from the loss of its lead to the next one."""

    def __init__(self, rank: int, membership: Membership, now: float, last_answer: float | None) -> None:
        """`last_answer`: when this member last gave its leader a sign of life; None if it never did, or was
        released."""
        self._rank, self._membership = rank, membership
        self._term = membership.term  # the highest one that came to nothing
        self._gone = {membership.leader}
        self.fenced_at = now if last_answer is None else max(now, last_answer + FENCE_S)
        self._since = self.fenced_at  # from here turns are counted
        self._until = self.fenced_at + GIVE_UP_S
        self._turn: int | None = None  # counted when it is asked for

    def decide(self, now: float, clean: bool, claims: Mapping[int, int]) -> Decision:
        """`claims`: the number of the node that has claimed each term; `clean`: nothing of the old term runs here."""
        if not clean or now < self.fenced_at:
            return Wait()
        untried = [term for term in claims if term > self._term and claims[term] not in self._membership.excluded]
        if untried:
            return Join(max(untried))
        if now >= self._until:
            return Leave()
        if self._rank in self._membership.roster and now >= self._since + self._place() * TURN_S:
            return Claim(max([self._term, *claims]) + 1)
        return Wait()

    def candidate_failed(self, term: int, leader: int, now: float, last_answer: float | None) -> None:
        """The candidate of this term could not be reached, retired (no answer counts then), or was lost."""
        self._term = max(self._term, term)
        self._gone.add(leader)
        self._turn = None
        if last_answer is not None:
            self.fenced_at = max(self.fenced_at, last_answer + FENCE_S)
        self._since = max(now, self.fenced_at)

    def _place(self) -> int:
        """Those who have tried, and the lost leader, come after everybody else; the turn of many never comes."""
        if self._turn is None:
            ours = (self._rank in self._gone, self._rank)
            before = (rank for rank in self._membership.roster if (rank in self._gone, rank) < ours)
            self._turn = sum(1 for _ in islice(before, int(GIVE_UP_S / TURN_S) + 1))
        return self._turn


class Campaign:
    """A claimed term: who has joined, and what they know."""

    def __init__(self, term: int, rank: int, membership: Membership) -> None:
        self.term, self._rank = term, rank
        self.membership = membership  # the newest that anybody here knows
        self.joined: dict[int, float] = {}  # when we last spoke to each before it joined
        self._shares: list[int] = []  # how many of each list have joined
        self._count()

    def joins(self, rank: int, membership: Membership, spoken: float) -> None:
        new, before = rank not in self.joined, self.membership
        self.joined[rank] = spoken
        self.membership = before.newer(membership)
        if self.membership.version != before.version:
            self._count()
        elif new:
            self._shares = [share + (rank in roster) for share, roster in zip(self._shares, self.membership.rosters)]

    def leaves(self, rank: int) -> None:
        if self.joined.pop(rank, None) is not None:
            self._count()

    def _count(self) -> None:
        """Kept, and not asked each time: ten thousand may join."""
        self._shares = [len(roster.intersection(self.joined)) for roster in self.membership.rosters]

    @property
    def won(self) -> bool:
        fit = self._rank in self.joined and self._rank in self.membership.roster
        return fit and all(majority(share, roster) for share, roster in zip(self._shares, self.membership.rosters))

    def term_start(self, reason: str) -> TermStart:
        """What the new leader begins with. The lost one is not waited for."""
        lost = self.membership.leader
        excluded = (self.membership.excluded | {lost}) - {self._rank}
        return TermStart(self.term, self._rank, self.membership.cycle + 1, excluded, reason, lost)

    def new_membership(self) -> Membership:
        """The first of the new term: who counts stays as before, until another roster is in force."""
        term_start, version = self.term_start(""), self.term * VERSIONS
        old = self.membership
        return Membership(self.term, self._rank, term_start.cycle, version, old.roster, term_start.excluded, old.before)
