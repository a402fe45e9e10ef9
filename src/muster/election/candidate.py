"""A candidate for a term: which members have joined it, whether it has won, and when it retires. No I/O, no clock.

    state        meaning                                                            effects
    unclaimed    it listens, and its claim is being made; members may join already  none
    campaigning  the claim is its own                                               Win, Retire
    won          it leads; the leader's lease counts the members from now on        none
    retired      it has released its members, who need no fence against it          none

    event        what follows
    claimed      campaigning; the claim to term 0 wins at once: no leader was before it
    joined       the member counts, with the newest membership that any member knows
    answered     the time of the last message that the member has answered, for the leader's lease
    lost         the member does not count any more
    tick         Retire, ELECTION_TIMEOUT_S after the claim

    Win needs    more than half of the newest roster known to its members, and of the roster before it until the newest
                 is known to be in force; and itself among them, joined and on the newest roster

A claim is one atomic link, so a term has at most one candidate. Members may have joined before the lost leader was
fenced; the win says what that means for the first driver (`handover.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Union

from muster.election.membership import VERSIONS_PER_TERM, Membership
from muster.election.quorum_lease import majority
from muster.lifecycle.config import TermStart

ELECTION_TIMEOUT_S = 15.0  # in which a candidate must get its majority


@dataclass(frozen=True)
class Win:
    """Lead the term, from this state and with this membership."""

    term_start: TermStart
    membership: Membership
    in_use: frozenset[int] | None = None  # nodes that must join before a driver starts (`handover.py`)


@dataclass(frozen=True)
class Retire:
    """Release the members that have joined."""


CandidacyEffect = Union[Win, Retire]


class CandidacyState(Enum):
    """The states of a candidacy; see the module's table."""

    UNCLAIMED = "unclaimed"
    CAMPAIGNING = "campaigning"
    WON = "won"
    RETIRED = "retired"


class Candidacy:
    """The term of one candidate. All times are those of its clock."""

    def __init__(
        self, term: int, node_index: int, membership: Membership, reason: str, in_use: frozenset[int] | None = None
    ) -> None:
        """`membership`: the newest that this node knows. `reason`: why the last leader was lost.

        `in_use`: nodes that may run processes of earlier terms until they join; None: `handover.last_members`.
        """
        self.term, self._node_index, self._reason = term, node_index, reason
        self.state = CandidacyState.UNCLAIMED
        self.membership = membership  # the newest known to any member
        self.sent: dict[int, float] = {}  # of each joined member: when the last message that it answered was sent
        self._own, self._in_use = membership, in_use
        self._clean: set[int] = set()  # have joined, and may be lost again
        self._deadline = 0.0
        self._votes: list[int] = []  # joined members of each roster; kept, since ten thousand may join
        self._count()

    def claimed(self, now: float) -> list[CandidacyEffect]:
        """Handle that this node's claim to the term has succeeded."""
        self.state, self._deadline = CandidacyState.CAMPAIGNING, now + ELECTION_TIMEOUT_S
        return self._check_won()

    def joined(self, node_index: int, known: Membership | None, sent: float) -> list[CandidacyEffect]:
        """Handle a member. `known`: its newest membership; `sent`: when the message it answered by joining was sent."""
        new, before = node_index not in self.sent, self.membership
        self.sent[node_index] = sent
        self._clean.add(node_index)
        self.membership = before.newer(known or self._own)
        if self.membership.version != before.version:
            self._count()
        elif new:
            rosters = self.membership.rosters
            self._votes = [votes + (node_index in roster) for votes, roster in zip(self._votes, rosters)]
        return self._check_won()

    def answered(self, node_index: int, sent: float | None) -> None:
        """Handle a member's answer to a heartbeat; `sent` is None if it only reports the membership that it knows."""
        if sent is not None and node_index in self.sent:
            self.sent[node_index] = sent

    def lost(self, node_index: int) -> None:
        """Handle the end of a member's connection, or its silence."""
        if self.sent.pop(node_index, None) is not None:
            self._count()

    def tick(self, now: float) -> list[CandidacyEffect]:
        """Handle the passing of time."""
        if self.state is CandidacyState.CAMPAIGNING and now >= self._deadline:
            self.state = CandidacyState.RETIRED
            return [Retire()]
        return []

    # -- rules --------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        self._votes = [len(roster.intersection(self.sent)) for roster in self.membership.rosters]

    def _check_won(self) -> list[CandidacyEffect]:
        if self.state is not CandidacyState.CAMPAIGNING or not (self.term == 0 or self._has_majority()):
            return []
        self.state = CandidacyState.WON
        return [self._first_term() if self.term == 0 else self._next_term()]

    def _has_majority(self) -> bool:
        eligible = self._node_index in self.sent and self._node_index in self.membership.roster
        return eligible and all(majority(votes, roster) for votes, roster in zip(self._votes, self.membership.rosters))

    def _first_term(self) -> Win:
        return Win(TermStart(leader=self._node_index), self._own)

    def _next_term(self) -> Win:
        """Continue with the next cycle, without the lost leader. The old roster counts until another is in force.

        A leader that has excluded itself has stepped down, and no driver of its last cycle ran.
        """
        old, lost = self.membership, self.membership.leader
        excluded, handed_over = (old.excluded | {lost}) - {self._node_index}, lost in old.excluded
        handovers = old.handovers + handed_over
        start = TermStart(
            self.term,
            self._node_index,
            old.cycle + 1,
            excluded,
            self._reason,
            lost,
            handed_over,
            handovers,
            roster=None if handed_over else old.roster | old.before,  # then its roster may name only its successor
        )
        version = self.term * VERSIONS_PER_TERM
        first = Membership(
            self.term, self._node_index, start.cycle, version, old.roster, excluded, old.before, handovers
        )
        return Win(start, first, self._still_in_use())

    def _still_in_use(self) -> frozenset[int] | None:
        if self._in_use is None:
            return None
        newest, in_use = self.membership, self._in_use
        if newest.version != self._own.version:  # nodes may have been used since
            in_use |= newest.roster | newest.before | newest.excluded
        return in_use - self._clean
