"""A host: its clock, its lease, the processes under it, and their supervisors, which need no agent for what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.election.membership import KILL_S
from tests.sim.world import World

FOREVER = float("inf")
DRIFT = 0.01  # by which a clock may be fast or slow
ORPHAN_GRACE_S = 30.0  # what supervisors leave to processes whose agent has ended
DRIVER, RAY, SERVICE = "driver", "ray", "service"


class Running:
    """A process of the run."""

    __slots__ = ("cycle", "ended", "host", "kind", "logical", "on_end", "term")

    def __init__(self, host: Host, kind: str, term: int, cycle: int, logical: int) -> None:
        self.host, self.kind, self.term, self.cycle, self.logical = host, kind, term, cycle, logical
        self.ended = False
        self.on_end: Callable[[str], None] = lambda how: None  # only the first end counts


class Host:
    """Times are in seconds of its own clock."""

    def __init__(self, world: World, rank: int, exact: bool = False) -> None:
        self._world, self.rank = world, rank
        self.rate = 1.0 if exact else world.between(1.0 - DRIFT, 1.0 + DRIFT)
        self._offset = 0.0 if exact else world.between(0.0, 1000.0)
        self.alive = True
        self.processes: list[Running] = []
        self.lease = FOREVER
        self._watched = False
        self.on_start: Callable[[Running], None] = lambda process: None

    @property
    def now(self) -> float:
        return self._offset + self._world.now * self.rate

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self._world.after(seconds / self.rate, act, *args)

    # -- the lease ----------------------------------------------------------------------------------------------

    @property
    def expired(self) -> bool:
        return self.now >= self.lease

    def renew(self, until: float) -> None:
        """One that is over stays so: what it covered is being killed."""
        if not self.expired:
            self.lease = until
            if not self._watched and until < FOREVER:
                self._watched = True
                self.after(until - self.now, self._look)

    def clear(self) -> None:
        """Nothing runs here, or nobody can go on without what does."""
        self.lease = FOREVER

    def _look(self) -> None:
        if self.lease == FOREVER:
            self._watched = False
        elif self.now < self.lease - 1e-9:
            self.after(self.lease - self.now, self._look)
        else:
            self._watched = False
            late = KILL_S if self._world.chance.random() < 0.2 else self._world.between(0.0, KILL_S)
            self.after(late, self._kill, list(self.processes))

    def _kill(self, processes: list[Running]) -> None:
        for process in processes:
            self.end(process, "was killed by SIGKILL")

    # -- processes ----------------------------------------------------------------------------------------------

    def start(self, kind: str, term: int, cycle: int, logical: int) -> Running | None:
        """None when the lease is over: a supervisor looks before it starts anything."""
        if self.expired or not self.alive:
            return None
        process = Running(self, kind, term, cycle, logical)
        self.processes.append(process)
        self.on_start(process)
        return process

    def end(self, process: Running, how: str) -> None:
        if not process.ended:
            process.ended = True
            self.processes.remove(process)
            process.on_end(how)

    def end_all(self) -> None:
        for process in list(self.processes):
            self.end(process, "was ended by SIGTERM")

    def orphan(self) -> None:
        """The agent is gone: supervisors ask their processes to leave, and kill them when grace or lease are over."""
        for process in self.processes:
            self.after(self._world.between(0.0, ORPHAN_GRACE_S), self._kill, [process])

    def die(self) -> None:
        self.alive = False
        for process in list(self.processes):
            process.on_end = lambda how: None
            self.end(process, "")
