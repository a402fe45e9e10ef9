"""The virtual time, the scheduled acts, and the only source of randomness."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any


class World:
    """Runs acts in the order of their times; acts of the same time in the order of scheduling."""

    def __init__(self, seed: int, traced: bool = False) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.request_chance = random.Random(f"requests {seed}")  # apart, so that other schedules stay as they are
        self.size_chance = random.Random(f"sizes {seed}")  # likewise
        self.steps = 0
        self.trace: list[str] | None = [] if traced else None
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self._planned += 1
        heapq.heappush(self._due, (self.now + seconds, self._planned, act, args))

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Run until nothing is due, `over` returns True, or the time `until` is reached."""
        due, pop = self._due, heapq.heappop
        while due and not over():
            when, _, act, args = pop(due)
            if when > until:
                self.now = until
                return
            self.now = when
            self.steps += 1
            act(*args)

    def between(self, least: float, most: float) -> float:
        return least + (most - least) * self.chance.random()

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:9.3f}  {text}")
