"""The membership that every member knows, so that any of them can continue the run."""

from __future__ import annotations

from dataclasses import dataclass, replace

VERSIONS_PER_TERM = 1_000_000  # so a version of a later term is always the higher one


@dataclass(frozen=True)
class Membership:
    """The leader, the cycle and the voters. A later term is newer; within a term, a higher version."""

    term: int
    leader: int
    cycle: int
    version: int  # grows with every change
    roster: frozenset[int]  # node numbers of the voters: a new leader needs more than half of them
    excluded: frozenset[int] = frozenset()  # never used again
    before: frozenset[int] = frozenset()  # the roster that this one replaces, until this one is known to be in force
    handovers: int = 0  # cycles that a leader handed over before their driver ran: they count as no restart

    @property
    def rosters(self) -> tuple[frozenset[int], ...]:
        """The rosters that count: also the previous one, until the new one is known to be in force."""
        return (self.roster, self.before) if self.before else (self.roster,)

    def without_leader(self) -> Membership:
        """Return the membership that a leader sends as it steps down.

        The leader is excluded and never votes again, so it does not count: in a roster of two, the other member may
        lead. A majority of the others still intersects every majority of a roster that included the leader, because
        those majorities have to do without it.
        """
        gone = {self.leader}
        roster, before, excluded = self.roster - gone, self.before - gone, self.excluded | gone
        return replace(self, version=self.version + 1, roster=roster, before=before, excluded=excluded)

    def handed_to(self, successor: int, excluded: frozenset[int]) -> Membership:
        """Return the membership that a leader sends as it steps down in a run that elects no leaders.

        Only the successor votes, so no other node can lead, whichever messages are lost.
        """
        return replace(self.without_leader(), roster=frozenset({successor}), before=frozenset(), excluded=excluded)

    def newer(self, other: Membership) -> Membership:
        """Return the newer of two, with the higher cycle of both."""
        newest = max(self, other, key=lambda membership: (membership.term, membership.version))
        return replace(newest, cycle=max(self.cycle, other.cycle))


def first_membership(nodes: int, leader: int = 0) -> Membership:
    """Return the membership at the start of a run: every node of the allocation votes."""
    return Membership(0, leader, 0, 0, frozenset(range(nodes)))
