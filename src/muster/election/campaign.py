"""How the members of a run that has lost its lead come to another one. No I/O, no clock, no randomness.

A member without a lead looks at the claims in the run directory and does one of these:

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

from muster.election.membership import FENCE_S, VERSIONS, Charter
from muster.election.quorum_lease import majority
from muster.lifecycle.config import Mandate

TURN_S = 2.0  # between the turns of two members to claim
ELECT_S = 15.0  # how long a candidate waits for its majority
GIVE_UP_S = 60.0  # how long a member that may join somebody looks for a lead


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


class Succession:
    """One member's way from the loss of its lead to the next one."""

    def __init__(self, rank: int, charter: Charter, now: float, last_answer: float | None) -> None:
        """`last_answer`: when this member last gave its lead a sign of life; None if it never did, or was released."""
        self._rank, self._charter = rank, charter
        self._term = charter.term  # the highest one that came to nothing
        self._gone = {charter.lead}
        self.fenced_at = now if last_answer is None else max(now, last_answer + FENCE_S)
        self._since = self.fenced_at  # from here turns are counted
        self._until = self.fenced_at + GIVE_UP_S
        self._turn: int | None = None  # counted when it is asked for

    def decide(self, now: float, clean: bool, claims: Mapping[int, int]) -> Decision:
        """`claims`: the number of the node that has claimed each term; `clean`: nothing of the old term runs here."""
        if not clean or now < self.fenced_at:
            return Wait()
        untried = [term for term in claims if term > self._term and claims[term] not in self._charter.excluded]
        if untried:
            return Join(max(untried))
        if now >= self._until:
            return Leave()
        if self._rank in self._charter.roster and now >= self._since + self._place() * TURN_S:
            return Claim(max([self._term, *claims]) + 1)
        return Wait()

    def came_to_nothing(self, term: int, lead: int, now: float, last_answer: float | None) -> None:
        """The candidate of this term could not be reached, retired (no answer counts then), or was lost."""
        self._term = max(self._term, term)
        self._gone.add(lead)
        self._turn = None
        if last_answer is not None:
            self.fenced_at = max(self.fenced_at, last_answer + FENCE_S)
        self._since = max(now, self.fenced_at)

    def _place(self) -> int:
        """Those who have tried, and the lost lead, come after everybody else; the turn of many never comes."""
        if self._turn is None:
            ours = (self._rank in self._gone, self._rank)
            before = (rank for rank in self._charter.roster if (rank in self._gone, rank) < ours)
            self._turn = sum(1 for _ in islice(before, int(GIVE_UP_S / TURN_S) + 1))
        return self._turn


class Candidacy:
    """A claimed term: who has joined, and what they know."""

    def __init__(self, term: int, rank: int, charter: Charter) -> None:
        self.term, self._rank = term, rank
        self.charter = charter  # the newest that anybody here knows
        self.joined: dict[int, float] = {}  # when we last spoke to each before it joined
        self._shares: list[int] = []  # how many of each list have joined
        self._count()

    def joins(self, rank: int, charter: Charter, spoken: float) -> None:
        new, before = rank not in self.joined, self.charter
        self.joined[rank] = spoken
        self.charter = before.newer(charter)
        if self.charter.version != before.version:
            self._count()
        elif new:
            self._shares = [share + (rank in roster) for share, roster in zip(self._shares, self.charter.rosters)]

    def leaves(self, rank: int) -> None:
        if self.joined.pop(rank, None) is not None:
            self._count()

    def _count(self) -> None:
        """Kept, and not asked each time: ten thousand may join."""
        self._shares = [len(roster.intersection(self.joined)) for roster in self.charter.rosters]

    @property
    def won(self) -> bool:
        fit = self._rank in self.joined and self._rank in self.charter.roster
        return fit and all(majority(share, roster) for share, roster in zip(self._shares, self.charter.rosters))

    def mandate(self, reason: str) -> Mandate:
        """What the new lead begins with. The lost one is not waited for."""
        lost = self.charter.lead
        excluded = (self.charter.excluded | {lost}) - {self._rank}
        return Mandate(self.term, self._rank, self.charter.cycle + 1, excluded, reason, lost)

    def new_charter(self) -> Charter:
        """The first of the new term: who counts stays as before, until another roster is in force."""
        mandate, version = self.mandate(""), self.term * VERSIONS
        old = self.charter
        return Charter(self.term, self._rank, mandate.cycle, version, old.roster, mandate.excluded, old.before)
