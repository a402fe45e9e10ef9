"""Until when a lead may act: who counts, who has answered, and how that list changes. No I/O, no clock.

A member is taken off the list in one of two ways:

    how                       counts no more
    its process has ended     at once: it can follow nobody else
    it is silent, or failed   once half of the present list, the lead among them, know the new one: from then on every
                              majority of the old list holds somebody who knows that it is the old one
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from muster.rendezvous.charter import LEASE_S, Charter

FOREVER = float("inf")


class Quorum:
    """The lead's side; times are the lead's own."""

    def __init__(self, charter: Charter) -> None:
        self.charter = charter  # as it is told to the members: the one in force, or the next
        self._in_force = charter.roster
        self._answered: dict[int, float] = {}  # when the beat was sent that this member has answered last
        self._knows: dict[int, int] = {}  # the version of the roster that it has seen
        self._dead: set[int] = set()

    def answered(self, rank: int, sent: float | None, version: int) -> None:
        """A member has answered a beat, or has joined; without a time it only tells what it knows."""
        if sent is not None:
            self._answered[rank] = max(sent, self._answered.get(rank, sent))
        self._knows[rank] = max(version, self._knows.get(rank, version))
        self._settle()

    def died(self, rank: int) -> None:
        """The connection of its process has ended, or the launcher saw it end."""
        self._dead.add(rank)
        self._settle()

    def propose(self, roster: Iterable[int], excluded: Iterable[int], cycle: int) -> bool:
        """Who is to count from now on; True when the members are to be told."""
        wanted = replace(self.charter, roster=frozenset(roster), excluded=frozenset(excluded), cycle=cycle)
        if wanted == self.charter:
            return False
        self.charter = replace(wanted, version=self.charter.version + 1)
        self._settle()
        return True

    @property
    def settled(self) -> bool:
        """Whether what was proposed last is in force."""
        return self._in_force == self.charter.roster

    def lease(self) -> float:
        """Until when the lead may act, as far as is known now."""
        others = sorted((self._answered.get(rank, -FOREVER) for rank in self._others()), reverse=True)
        wanted = _half(len(others) + 1) - 1  # besides the lead
        return others[wanted - 1] + LEASE_S if wanted else FOREVER

    def _others(self) -> set[int]:
        return set(self._in_force) - self._dead - {self.charter.lead}

    def _settle(self) -> None:
        others = self._others()
        know = sum(self._knows.get(rank, -1) >= self.charter.version for rank in others)
        if know + 1 >= _half(len(others) + 1):
            self._in_force = self.charter.roster


def _half(count: int) -> int:
    """At least half: enough for the lead that is there, which is always one of them; a new one needs more."""
    return (count + 1) // 2


def majority(joined: Iterable[int], roster: frozenset[int]) -> bool:
    """Whether these may choose a new lead: more than half of the list."""
    return 2 * len(roster.intersection(joined)) > len(roster)
