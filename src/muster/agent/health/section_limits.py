"""Limits of sections, learned from how long they took: median, spread and a safety factor. Pure.

limit of a section
given by the program    that one
learned                 the largest of `minimum`, SAFETY_FACTOR x median, and median + SPREAD_FACTOR x spread
too few samples         none: the section cannot be overdue

Samples are those of all processes of a node, and of earlier cycles and attempts on it. The first sections of each
process are no samples, see muster/sections.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from muster.sections import STEP

MIN_SAMPLES = 10
MAX_SAMPLES = 256  # of each name, the newest ones
MAX_NAMES = 256
SAFETY_FACTOR = 5.0  # times that vary by a factor of 3 around the median are usual
SPREAD_FACTOR = 10.0
MAD_TO_DEVIATION = 1.4826  # the standard deviation of a normal distribution in median absolute deviations


def learned_limit(samples: Sequence[float], minimum: float) -> float | None:
    """Return the limit in seconds; None with fewer than MIN_SAMPLES samples.

    >>> learned_limit([1.0, 2.0, 3.0] * 4, 0.5)
    16.826
    >>> learned_limit([1.0] * 9, 0.5) is None
    True
    """
    if len(samples) < MIN_SAMPLES:
        return None
    middle = median(samples)
    spread = MAD_TO_DEVIATION * median(abs(sample - middle) for sample in samples)
    return max(minimum, SAFETY_FACTOR * middle, middle + SPREAD_FACTOR * spread)


@dataclass(frozen=True)
class ProcessSection:
    """What a process of the job does: its section, for how many seconds, and the limit of that."""

    pid: int
    rank: int | None  # in a gang
    step: int | None  # of the last muster.beat(step=...)
    section: str | None  # None: in no section and between steps
    seconds: float
    limit: float | None
    given: bool  # by the program; else the limit is learned

    @property
    def excess(self) -> float:
        """The seconds beyond the limit; negative before it."""
        return -math.inf if self.limit is None else self.seconds - self.limit

    @property
    def overdue(self) -> bool:
        return self.excess > 0


class SectionTimes:
    """The samples of a node by the name of the section."""

    def __init__(self, minimum: float, known: Mapping[str, Sequence[float]]) -> None:
        """`known`: samples of earlier cycles."""
        self._minimum = minimum
        self._known = {name: list(samples) for name, samples in known.items()}

    def samples(self, records: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
        """Return all samples with those of these processes."""
        found = {name: list(samples) for name, samples in self._known.items()}
        for record in records:
            for name, samples in record["durations"].items():
                if name in found or len(found) < MAX_NAMES:
                    found.setdefault(name, []).extend(samples)
        return {name: samples[-MAX_SAMPLES:] for name, samples in found.items()}

    def assess(self, records: Sequence[Mapping[str, Any]], now: float) -> list[ProcessSection]:
        """Return what each process does: of several open sections the one that is closest to its limit."""
        samples = self.samples(records)
        limits = {name: learned_limit(durations, self._minimum) for name, durations in samples.items()}
        return [_assess(record, limits, now) for record in records]


def _assess(record: Mapping[str, Any], limits: Mapping[str, float | None], now: float) -> ProcessSection:
    rank = int(record["rank"]) if str(record["rank"]).isdigit() else None

    found = [_Open(one["name"], one["since"], one["timeout"]) for one in record["open"]]
    if not found and record["beat"] is not None:
        found = [_Open(STEP, record["beat"], None)]
    doing = [
        ProcessSection(
            record["pid"],
            rank,
            record["step"],
            one.name,
            round(now - one.since, 3),
            limits.get(one.name) if one.timeout is None else one.timeout,
            given=one.timeout is not None,
        )
        for one in found
    ]
    none = ProcessSection(record["pid"], rank, record["step"], None, 0.0, None, False)
    return max(doing, key=lambda one: one.excess, default=none)


class _Open(NamedTuple):
    """An open section, or a step."""

    name: str
    since: float
    timeout: float | None  # given by the program
