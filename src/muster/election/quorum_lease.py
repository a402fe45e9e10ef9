"""Until when a leader may act: who counts, who has answered, and how that list changes. No I/O, no clock.

A member is taken off the list in one of two ways:

    how                                      counts no more
    its process has ended, as seen on its    at once: it can follow nobody else. (An ended connection is no proof: a
    own host (the launcher says so)          firewall can end one between two that live.)
    anything else: it is silent, it failed   by a new list. While that is not in force both lists count: the leader
    needs
    or its connection ended                  half of each, a new leader more than half of each. It is in force once half
                                             of each know it: from then on nobody has a majority of the old list
                                             without somebody who knows the new one

A leader that has held its lease without a break knows that no majority has left it. One that has not held it yet may
have been left, and the dead may have followed another leader before they ended: for its first lease they count.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import replace

from muster.election.membership import LEASE_S, Membership

FOREVER = float("inf")


class QuorumLease:
    """The leader's side; times are the leader's own."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership  # as it is to be told to the members
        self._proposed = membership.version  # the last one that said something new
        self._known = -1  # the highest one that half of every list know
        self._answered: dict[int, float] = {}  # when the beat was sent that this member has answered last
        self._knows: dict[int, int] = {}  # the version that it has seen
        self._dead: set[int] = set()
        self._held = False  # the lease
        self._count()

    def answered(self, rank: int, sent: float | None, version: int) -> bool:
        """A member has answered a beat, or has joined; without a time it only tells what it knows.

        True when a roster has come in force by it, which the members are to be told.
        """
        before, knew = self._answered.get(rank, -FOREVER), self._knows.get(rank, -1)
        if sent is not None and sent > before:
            self._answered[rank] = sent
            for half in self._halves:
                half.answered(rank, before, sent)
        if version <= knew:
            return False
        self._knows[rank] = version
        if knew < self.membership.version <= version:
            for half in self._halves:
                half.knows(rank)
        return self._settle()

    def died(self, rank: int) -> bool:
        """The launcher saw its process end. True as above."""
        self._dead.add(rank)
        self._count()
        return self._settle()

    def take(self, now: float) -> bool:
        """Whether the leader may begin to act. From then on it may while the lease lasts, and never again after."""
        if not self._held and self.settled and self.lease() > now:
            self._held = True
            self._count()
        return self._held

    def propose(self, roster: Iterable[int], excluded: Iterable[int], cycle: int) -> bool:
        """Who is to count from now on; True when the members are to be told. One change at a time: then False."""
        wanted = replace(self.membership, roster=frozenset(roster), excluded=frozenset(excluded), cycle=cycle)
        if wanted == self.membership or self.membership.before:
            return False
        before = self.membership.roster if self.membership.roster != wanted.roster else frozenset()
        self.membership = replace(wanted, version=self.membership.version + 1, before=before)
        self._proposed = self.membership.version
        self._count()
        self._settle()
        return True

    @property
    def settled(self) -> bool:
        """Whether no new leader can come without knowing what was proposed last, its cycle among it."""
        return self._known >= self._proposed

    def lease(self) -> float:
        """Until when the leader may act, as far as is known now."""
        return min(half.since for half in self._halves) + LEASE_S

    def _count(self) -> None:
        know = {rank for rank, version in self._knows.items() if version >= self.membership.version}
        apart = {self.membership.leader} | (self._dead if self._held else set())
        others = (roster - apart for roster in self.membership.rosters)
        self._halves = [_Half(list_, self._answered, know) for list_ in others]

    def _settle(self) -> bool:
        if self._known >= self.membership.version or not all(half.know for half in self._halves):
            return False
        self._known = self.membership.version
        if not self.membership.before:
            return False
        self.membership = replace(self.membership, version=self.membership.version + 1, before=frozenset())
        self._count()
        return True


class _Half:
    """Of one list, the leader apart: since when enough have answered to make half with the leader, and whether they
    know.

    Kept in order as it comes: ten thousand answer every beat.
    """

    def __init__(self, others: frozenset[int], answered: Mapping[int, float], know: set[int]) -> None:
        self._others, self._wanted = others, len(others) // 2
        self._missing = self._wanted - len(others & know)
        self._times = sorted(answered.get(rank, -FOREVER) for rank in others)

    @property
    def know(self) -> bool:
        return self._missing <= 0

    @property
    def since(self) -> float:
        """For ever, where the leader alone is half."""
        return self._times[-self._wanted] if self._wanted else FOREVER

    def knows(self, rank: int) -> None:
        self._missing -= rank in self._others

    def answered(self, rank: int, before: float, sent: float) -> None:
        if rank in self._others:
            del self._times[bisect_left(self._times, before)]
            insort(self._times, sent)


def majority(share: int, roster: frozenset[int]) -> bool:
    """Whether so many of a list may choose a new leader: more than half of it."""
    return 2 * share > len(roster)
