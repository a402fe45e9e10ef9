"""The simulated run directory, whose files become visible to each host with a delay; and the launcher's reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.sim.world import World

MIN_ACCESS_S, MAX_ACCESS_S = 0.0005, 0.01  # duration of an operation


@dataclass(frozen=True)
class Recorded:
    """The outcome of the run, as recorded."""

    code: int
    reason: str


Then = Callable[..., None]
Operation = Callable[[], Any]


class RunDirectory:
    """The claim and the status of each term, and the outcome. Faults set `lag` and `pauses`, by host."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.claims: dict[int, tuple[float, int]] = {}  # creation time and node number
        self.statuses: dict[int, list[tuple[float, float]]] = {}  # publication times and the stamps that were written
        self.outcome: tuple[float, Recorded] | None = None  # and when it was recorded
        self.ended: dict[int, float] = {}  # tasks whose end the launcher has seen
        self.gone: dict[int, float] = {}  # terms whose claimant is certified to have ended, with all its processes
        self.heartbeats: dict[int, Callable[[], int]] = {}  # by host, before it has a leader
        self.lag: dict[int, float] = {}  # seconds; a host does not see newer files yet
        self.pauses: dict[int, float] = {}  # time until which operations of this host wait
        self.slow_until = 0.0  # the end of the last lag or pause of any host

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

    def claim(self, term: int, node_index: int) -> bool:
        if term in self.claims:
            return False
        self.claims[term] = (self._world.now, node_index)
        return True

    def certify(self, node_index: int) -> None:
        """Certify the end of a node's agent for every term that it has claimed."""
        for term, (_, claimant) in self.claims.items():
            if claimant == node_index:
                self.gone.setdefault(term, self._world.now)

    def seen_gone(self, host: int) -> frozenset[int]:
        since = self._seen_until(host)
        return frozenset(term for term, made in self.gone.items() if made <= since)

    def publish(self, term: int, stamp: float) -> None:
        self.statuses.setdefault(term, []).append((self._world.now, stamp))

    def conclude(self, outcome: Recorded) -> Recorded:
        """Record the outcome unless there is one; return the recorded one."""
        if self.outcome is None:
            self.outcome = self._world.now, outcome
        return self.outcome[1]

    def seen_claims(self, host: int) -> dict[int, int]:
        since = self._seen_until(host)
        return {
            term: node_index for term, (made, node_index) in self.claims.items() if made <= since or node_index == host
        }

    def seen_outcome(self, host: int) -> Recorded | None:
        return self.outcome[1] if self.outcome is not None and self.outcome[0] <= self._seen_until(host) else None

    def newest(self, host: int) -> tuple[int, float]:
        """Return the highest term with a status, and the stamp of that status."""
        since = self._seen_until(host)
        seen = [term for term, published in self.statuses.items() if published[0][0] <= since]
        if not seen:
            return -1, 0.0
        return max(seen), [stamp for made, stamp in self.statuses[max(seen)] if made <= since][-1]

    def seen_ends(self, host: int) -> list[int]:
        since = self._seen_until(host)
        return [node_index for node_index, made in self.ended.items() if made <= since]

    def seen_heartbeats(self, node_indexes: range) -> dict[int, int]:
        return {node_index: self.heartbeats[node_index]() for node_index in node_indexes}

    def _seen_until(self, host: int) -> float:
        return self._world.now - self.lag.get(host, 0.0)
