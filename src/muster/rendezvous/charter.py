"""What every member knows of its run, so that any of them can go on with it; and the times that keep leads apart.

A lead may act only while it holds a lease: half of the members (itself among them) have answered a beat that it sent
less than LEASE_S ago. What it runs is killed within KILL_S of the lease's end, by keepers that need no agent for it.
A member that has lost its lead waits until both have passed since its own last answer. So when a majority has left a
lead, nothing of that lead's is alive any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

LEASE_S = 10.0
KILL_S = 2.0
FENCE_S = LEASE_S + KILL_S  # after its last answer to a lead a member may join another one


@dataclass(frozen=True)
class Charter:
    """The lead, the cycle, and who counts. One of a later term is newer; in a term, one of a higher version."""

    term: int
    lead: int
    cycle: int
    version: int  # of the roster; grows with every change
    roster: frozenset[int]  # the nodes, by number, of which a new lead needs more than half
    excluded: frozenset[int] = frozenset()  # never used again

    def as_record(self) -> dict[str, Any]:
        """For a message; a thousand neighbours take no more room than one."""
        lists = {"roster": _ranges(self.roster), "excluded": _ranges(self.excluded)}
        return {"term": self.term, "lead": self.lead, "cycle": self.cycle, "version": self.version, **lists}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Charter:
        known = {name: record[name] for name in ("term", "lead", "cycle", "version")}
        return cls(**known, roster=_numbers(record["roster"]), excluded=_numbers(record["excluded"]))

    def newer(self, other: Charter) -> Charter:
        """The newer of two, with the higher cycle of both."""
        newest = max(self, other, key=lambda charter: (charter.term, charter.version))
        return replace(newest, cycle=max(self.cycle, other.cycle))


def first_charter(nodes: int, lead: int = 0) -> Charter:
    """Before anybody has said more: every node of the allocation counts."""
    return Charter(0, lead, 0, 0, frozenset(range(nodes)))


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
