"""What every member knows of its run, so that any of them can go on with it; and the times that keep leads apart.

A leader may act only while it holds a lease: half of the members (itself among them) have answered a beat that it sent
less than LEASE_S ago. What it runs is killed within KILL_S of the lease's end, by supervisors that need no agent for
it. A member that has lost its leader waits until both have passed since its own last answer. So when a majority has
left a lead, nothing of that leader's is alive any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

LEASE_S = 9.5
KILL_S = 2.0
DRIFT_S = 0.5  # by what the clocks of two hosts may disagree about such a time: 1 % each, in either direction
FENCE_S = LEASE_S + KILL_S + DRIFT_S  # after its last answer to a leader a member may join another one

VERSIONS = 1_000_000  # in a term; so a version of a later term is the higher one, whoever made it


@dataclass(frozen=True)
class Membership:
    """The leader, the cycle, and who counts. One of a later term is newer; in a term, one of a higher version."""

    term: int
    leader: int
    cycle: int
    version: int  # grows with every change
    roster: frozenset[int]  # the nodes, by number, of which a new leader needs more than half
    excluded: frozenset[int] = frozenset()  # never used again
    before: frozenset[int] = frozenset()  # the roster that this one replaces, until it is known to be in force

    @property
    def rosters(self) -> tuple[frozenset[int], ...]:
        """The lists that count: while a new one is not known to be in force, the one before as well."""
        return (self.roster, self.before) if self.before else (self.roster,)

    def as_record(self) -> dict[str, Any]:
        """For a message; a thousand neighbours take no more room than one."""
        numbers = {"term": self.term, "lead": self.leader, "cycle": self.cycle, "version": self.version}
        return {**numbers, **{name: _ranges(getattr(self, name)) for name in _LISTS}}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Membership:
        roster, excluded, before = (_numbers(record[name]) for name in _LISTS)
        return cls(record["term"], record["lead"], record["cycle"], record["version"], roster, excluded, before)

    def without_leader(self) -> Membership:
        """Return what a leader tells its members as it steps down.

        It is excluded and never votes again, so it does not count: of a roster of two, its only other member may lead.
        A majority of the others still meets every majority of a roster that it counted in, which has to do without it.
        """
        roster, before, excluded = (
            self.roster - {self.leader},
            self.before - {self.leader},
            self.excluded | {self.leader},
        )
        return replace(self, version=self.version + 1, roster=roster, before=before, excluded=excluded)

    def newer(self, other: Membership) -> Membership:
        """The newer of two, with the higher cycle of both."""
        newest = max(self, other, key=lambda membership: (membership.term, membership.version))
        return replace(newest, cycle=max(self.cycle, other.cycle))


_LISTS = ("roster", "excluded", "before")


def first_membership(nodes: int, leader: int = 0) -> Membership:
    """Before anybody has said more: every node of the allocation counts."""
    return Membership(0, leader, 0, 0, frozenset(range(nodes)))


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """First and last of each run of neighbours."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _numbers(ranges: Iterable[Sequence[int]]) -> frozenset[int]:
    return frozenset(number for first, last in ranges for number in range(first, last + 1))
