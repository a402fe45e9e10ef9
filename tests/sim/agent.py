"""One agent's process: it can be stopped and continued, it crashes or leaves; and what it knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.election.leader_silence import STARTUP_HEARTBEAT_S
from muster.election.membership import FENCE_S
from muster.lifecycle.config import RunConfig
from tests.sim.files import Files
from tests.sim.host import Host
from tests.sim.invariants import Watch
from tests.sim.network import End, Network
from tests.sim.world import World

SILENCE_S = FENCE_S  # who has not been heard for this long is taken for lost


class Surroundings:
    """What all agents of a run share."""

    def __init__(self, world: World, plan: RunConfig, watch: Watch) -> None:
        self.world, self.plan, self.watch = world, plan, watch
        self.network, self.files = Network(world), Files(world)
        self.driver: Callable[[], tuple[float, int]] = lambda: (world.between(2.0, 30.0), 0)  # seconds, exit code


class Agent:
    """Everything that happens to it comes by `deliver`; while it is stopped, that waits."""

    def __init__(self, around: Surroundings, host: Host) -> None:
        self.around, self.host, self.rank = around, host, host.rank
        self.alive, self.stopped = True, False
        self.crashed = False
        self.reason: str | None = None  # why it left
        self._held: list[tuple[bool, Callable[..., None], tuple[Any, ...]]] = []
        self._beat = 0
        around.network.processes[self.rank] = self
        around.files.heartbeats[self.rank] = self._heartbeat

    @property
    def now(self) -> float:
        return self.host.now

    def say(self, text: str) -> None:
        if self.around.world.trace is not None:
            self.around.world.say(f"n{self.rank}: {text}")

    def _heartbeat(self) -> int:
        """As its prelude and then it write it; both stand still where the process or its filesystem does."""
        now = self.around.world.now
        if self.alive and not self.stopped and self.around.files.pauses.get(self.rank, 0.0) <= now:
            self._beat = int(now / STARTUP_HEARTBEAT_S)
        return self._beat

    # -- what reaches it ----------------------------------------------------------------------------------------

    def deliver(self, act: Callable[..., None], *args: Any) -> None:
        self._take(False, act, args)

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """By its own clock."""
        self.host.after(seconds, self._take, True, act, args)

    def _take(self, timed: bool, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.stopped:
            self._held.append((timed, act, args))
        elif self.alive:
            act(*args)

    def ask(self, operation: Callable[[], Any], then: Callable[..., None]) -> None:
        """Of the shared filesystem; the answer comes when it comes."""
        self.around.files.ask(self.rank, self.deliver, operation, then)

    def accept(self, end: End, term: int) -> bool:
        raise NotImplementedError

    def listen(self, end: End, lost: Callable[[End], None]) -> None:
        """From now on, whoever is at the other side of this connection must be heard."""
        end.wait = self.now
        self.after(SILENCE_S, self._hear_nothing, end, lost)

    def _hear_nothing(self, end: End, lost: Callable[[End], None]) -> None:
        left = end.wait + SILENCE_S - self.now
        if end.closed:
            return
        if left > 1e-9:
            self.after(left, self._hear_nothing, end, lost)
        else:
            lost(end)

    # -- its life -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self.say("is stopped")
        self.stopped = True

    def resume(self) -> None:
        """What was due in the meantime happens now: timers first, or in the order in which it came."""
        if not self.stopped or not self.alive:
            return
        self.say("is continued")
        self.stopped, held = False, self._held
        self._held = []
        if self.around.world.chance.random() < 0.5:
            held.sort(key=lambda entry: not entry[0])
        for timed, act, args in held:
            self._take(timed, act, args)

    def crash(self) -> None:
        """Its host lives: peers see the end of its connections, supervisors that of their owner."""
        if self.alive:
            self.say("crashes")
            self.crashed = True
            self._end()
            self.host.orphan()

    def leave(self, reason: str) -> None:
        """By itself, when nothing of the run is left here."""
        if self.alive:
            self.say(f"leaves: {reason}")
            self.reason = reason
            self.host.end_all()
            self._end()

    def lose_host(self) -> None:
        if self.alive or self.host.processes:
            self.say("its host dies")
            self.around.network.die(self.rank)
            self.host.die()
            if self.alive:
                self.crashed, self.alive = True, False
                self.around.watch.left()

    def _end(self) -> None:
        """The launcher says so, where its own host lives and can hear of it."""
        self.alive = self.stopped = False
        around = self.around
        around.network.leave(self)
        around.watch.left()
        around.world.after(around.world.between(0.05, 1.0), self._tell_launcher)

    def _tell_launcher(self) -> None:
        around = self.around
        if around.network.is_blocked(self.rank, 0):
            around.world.after(1.0, self._tell_launcher)
        elif not {0, self.rank} & around.network.dead:
            around.files.ended[self.rank] = around.world.now
