"""The process of one simulated agent: it can be stopped, continued, crash or leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.election.leader_silence import STARTUP_HEARTBEAT_S
from muster.election.timing import FENCE_S
from muster.lifecycle.config import RunConfig
from tests.sim.files import RunDirectory
from tests.sim.host import Host
from tests.sim.invariants import InvariantChecker
from tests.sim.network import ConnectionEnd, Network
from tests.sim.world import World

HEARTBEAT_TIMEOUT_S = FENCE_S  # after which a silent peer is considered lost


class Environment:
    """The objects that all agents of a run share."""

    def __init__(self, world: World, plan: RunConfig, checker: InvariantChecker) -> None:
        self.world, self.plan, self.checker = world, plan, checker
        self.network, self.files = Network(world), RunDirectory(world)
        self.driver: Callable[[], tuple[float, int]] = lambda: (world.between(2.0, 30.0), 0)  # seconds, exit code


class Agent:
    """An agent. All its events arrive through `deliver`; those of a stopped agent wait."""

    def __init__(self, env: Environment, host: Host) -> None:
        self.env, self.host, self.rank = env, host, host.rank
        self.alive, self.stopped = True, False
        self.crashed = False
        self.reason: str | None = None  # why it left
        self._held: list[tuple[bool, Callable[..., None], tuple[Any, ...]]] = []
        self._beat = 0
        env.network.processes[self.rank] = self
        env.files.heartbeats[self.rank] = self._heartbeat

    @property
    def now(self) -> float:
        return self.host.now

    def log(self, text: str) -> None:
        if self.env.world.trace is not None:
            self.env.world.log(f"n{self.rank}: {text}")

    def _heartbeat(self) -> int:
        """Return the startup heartbeat; it does not change while the process is stopped or its filesystem hangs."""
        now = self.env.world.now
        if self.alive and not self.stopped and self.env.files.pauses.get(self.rank, 0.0) <= now:
            self._beat = int(now / STARTUP_HEARTBEAT_S)
        return self._beat

    # -- events ------------------------------------------------------------------------------------------------

    def deliver(self, act: Callable[..., None], *args: Any) -> None:
        self._run(False, act, args)

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """Schedule an act by the agent's clock."""
        self.host.after(seconds, self._run, True, act, args)

    def _run(self, timed: bool, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.stopped:
            self._held.append((timed, act, args))
        elif self.alive:
            act(*args)

    def access_files(self, operation: Callable[[], Any], then: Callable[..., None]) -> None:
        """Access the shared filesystem; `then` gets the result later."""
        self.env.files.access(self.rank, self.deliver, operation, then)

    def accept(self, end: ConnectionEnd, term: int) -> bool:
        raise NotImplementedError

    def listen(self, end: ConnectionEnd, lost: Callable[[ConnectionEnd], None]) -> None:
        """Call `lost` when the peer of this connection is silent for HEARTBEAT_TIMEOUT_S."""
        end.wait = self.now
        self.after(HEARTBEAT_TIMEOUT_S, self._check_silence, end, lost)

    def _check_silence(self, end: ConnectionEnd, lost: Callable[[ConnectionEnd], None]) -> None:
        left = end.wait + HEARTBEAT_TIMEOUT_S - self.now
        if end.closed:
            return
        if left > 1e-9:
            self.after(left, self._check_silence, end, lost)
        else:
            lost(end)

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self.log("is stopped")
        self.stopped = True

    def resume(self) -> None:
        """Continue; pending events run now, timers first or in the order of arrival."""
        if not self.stopped or not self.alive:
            return
        self.log("is continued")
        self.stopped, held = False, self._held
        self._held = []
        if self.env.world.chance.random() < 0.5:
            held.sort(key=lambda entry: not entry[0])
        for timed, act, args in held:
            self._run(timed, act, args)

    def crash(self) -> None:
        """End the process while its host lives: peers see closed connections, supervisors the end of their owner."""
        if self.alive:
            self.log("crashes")
            self.crashed = True
            self._end()
            self.host.orphan()

    def leave(self, reason: str) -> None:
        """Exit normally, with no process of the run left on the host."""
        if self.alive:
            self.log(f"leaves: {reason}")
            self.reason = reason
            self.host.end_all()
            self._end()

    def lose_host(self) -> None:
        if self.alive or self.host.processes:
            self.log("its host dies")
            self.env.network.die(self.rank)
            self.host.die()
            if self.alive:
                self.crashed, self.alive = True, False
                self.env.checker.left()

    def _end(self) -> None:
        """End the process. The launcher, on host 0, reports it if it is alive and reachable."""
        self.alive = self.stopped = False
        env = self.env
        env.network.leave(self)
        env.checker.left()
        env.world.after(env.world.between(0.05, 1.0), self._notify_launcher)

    def _notify_launcher(self) -> None:
        env = self.env
        if env.network.is_blocked(self.rank, 0):
            env.world.after(1.0, self._notify_launcher)
        elif not {0, self.rank} & env.network.dead:
            env.files.ended[self.rank] = env.world.now
