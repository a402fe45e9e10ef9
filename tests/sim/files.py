"""The simulated run directory, whose files become visible to each host with a delay; and the launcher's reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.world import World

MIN_ACCESS_S, MAX_ACCESS_S = 0.0005, 0.01  # duration of an operation


Then = Callable[..., None]
Operation = Callable[[], Any]


class RunDirectory:
    """A claim, a status and an outcome for each term. Faults set `lag` and `pauses`, by host."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.claims: dict[int, tuple[float, int]] = {}  # creation time and node number
        self.statuses: dict[int, tuple[float, Callable[[], bool]]] = {}  # and whether its leader still publishes
        self.outcomes: dict[int, tuple[float, str]] = {}
        self.ended: dict[int, float] = {}  # tasks whose end the launcher has seen
        self.heartbeats: dict[int, Callable[[], int]] = {}  # by host, before it has a leader
        self.lag: dict[int, float] = {}  # seconds; a host does not see newer files yet
        self.pauses: dict[int, float] = {}  # time until which operations of this host wait

    def access(self, host: int, deliver: Then, operation: Operation, then: Then) -> None:
        """Run an operation; a pause delays it or its result."""
        world = self._world
        pause = max(0.0, self.pauses.get(host, 0.0) - world.now)
        before = pause if world.chance.random() < 0.5 else 0.0
        world.after(
            before + world.between(MIN_ACCESS_S, MAX_ACCESS_S), self._do, pause - before, deliver, operation, then
        )

    def _do(self, rest: float, deliver: Then, operation: Operation, then: Then) -> None:
        self._world.after(rest, deliver, then, operation())

    # -- operations ---------------------------------------------------------------------------------------------

    def claim(self, term: int, rank: int) -> bool:
        if term in self.claims:
            return False
        self.claims[term] = (self._world.now, rank)
        return True

    def publish(self, term: int, publishes: Callable[[], bool]) -> None:
        self.statuses[term] = (self._world.now, publishes)

    def conclude(self, term: int, reason: str) -> str:
        """Record the reason unless there is one; return the recorded one."""
        return self.outcomes.setdefault(term, (self._world.now, reason))[1]

    def seen_claims(self, host: int) -> dict[int, int]:
        since = self._seen_until(host)
        return {term: rank for term, (made, rank) in self.claims.items() if made <= since or rank == host}

    def seen_outcome(self, host: int) -> str | None:
        """Return the outcome of the highest term with a status, as all readers do."""
        since = self._seen_until(host)
        term = max((term for term, (made, _) in self.statuses.items() if made <= since), default=0)
        made, reason = self.outcomes.get(term, (since + 1.0, ""))
        return reason if made <= since else None

    def newest(self, host: int) -> tuple[int, bool]:
        """Return the highest term with a status, and whether that is still written."""
        since = self._seen_until(host)
        seen = [term for term, (made, _) in self.statuses.items() if made <= since]
        return (max(seen), self.statuses[max(seen)][1]()) if seen else (-1, False)

    def seen_ends(self, host: int) -> list[int]:
        since = self._seen_until(host)
        return [rank for rank, made in self.ended.items() if made <= since]

    def seen_heartbeats(self, ranks: range) -> dict[int, int]:
        return {rank: self.heartbeats[rank]() for rank in ranks}

    def _seen_until(self, host: int) -> float:
        return self._world.now - self.lag.get(host, 0.0)
