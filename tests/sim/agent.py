"""The process of one simulated agent: it can be stopped, continued, crash or leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.election.leader_silence import STARTUP_HEARTBEAT_S
from muster.election.timing import FENCE_S
from muster.lifecycle.config import RunConfig
from muster.process.running_time import STALL_S as RUNNING_STALL_S
from tests.sim.files import RunDirectory
from tests.sim.host import NEVER, Host
from tests.sim.invariants import InvariantChecker
from tests.sim.network import ConnectionEnd, Network
from tests.sim.scenarios import PLAIN
from tests.sim.world import World

HEARTBEAT_TIMEOUT_S = FENCE_S  # after which a silent peer is considered lost
MAX_LAUNCHER_DELAY_S = 30.0  # between the end of a task and its report
STOPPED_S = RUNNING_STALL_S  # by which the clock of an event loop advances in a stop
STALL_S = HEARTBEAT_TIMEOUT_S / 4  # a check for silence that is later than this shows that this process stalled


class Environment:
    """The objects that all agents of a run share."""

    def __init__(self, world: World, plan: RunConfig, checker: InvariantChecker) -> None:
        self.world, self.plan, self.checker = world, plan, checker
        self.network, self.files = Network(world), RunDirectory(world)
        self.agents: dict[int, Any] = {}  # by node index
        self.scenario = PLAIN
        self.driver: Callable[[], tuple[float, int]] = lambda: (world.between(2.0, 30.0), 0)  # seconds, exit code


class Agent:
    """An agent. All its events arrive through `deliver`; those of a stopped agent wait."""

    def __init__(self, env: Environment, host: Host) -> None:
        self.env, self.host, self.node_index = env, host, host.node_index
        self.alive, self.stopped = True, False
        self.crashed = False
        self.reason: str | None = None  # why it left
        self.code: int | None = None  # its exit code
        self.troubled_at = -NEVER  # when it was last stopped or stalled
        self.stops = 0  # number of times that it was stopped or stalled
        self._stopped_at = 0.0
        self._troubled = False  # other nodes did not stop with this one
        self._silence_from = -NEVER  # before which silence of peers does not count, by the clock of the event loop
        self._not_running = 0.0  # seconds for which it was stopped, as its event loop measures them
        self._computing = False
        self._held: list[tuple[bool, Callable[..., None], tuple[Any, ...]]] = []
        self._beat = 0
        env.network.processes[self.node_index] = self
        env.files.heartbeats[self.node_index] = self._heartbeat

    @property
    def now(self) -> float:
        """The monotonic clock, for leases."""
        return self.host.now

    @property
    def running_now(self) -> float:
        """The clock of the event loop, which hardly advances while the process is stopped: for everything else."""
        return self.host.now - self._not_running

    def log(self, text: str) -> None:
        if self.env.world.trace is not None:
            self.env.world.log(f"n{self.node_index}: {text}")

    def _heartbeat(self) -> int:
        """Return the startup heartbeat; it does not change while the process is stopped or its filesystem hangs."""
        now = self.env.world.now
        if self.alive and not self.stopped and self.env.files.pauses.get(self.node_index, 0.0) <= now:
            self._beat = int(now / STARTUP_HEARTBEAT_S)
        return self._beat

    # -- events ------------------------------------------------------------------------------------------------

    def deliver(self, act: Callable[..., None], *args: Any) -> None:
        self._run(False, act, args)

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """Schedule an act by the clock of the event loop."""
        self.host.after(seconds, self._run, True, self._when_due, (self.running_now + seconds, act, args))

    def _when_due(self, due: float, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        left = due - self.running_now
        if left > 1e-6:
            self.after(left, act, *args)
        else:
            act(*args)

    def _run(self, timed: bool, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.stopped or self._computing:
            self._held.append((timed, act, args))
        elif self.alive:
            act(*args)
            self.compute(self.cpu_s())

    def cpu_s(self) -> float:
        """Return the CPU seconds that an event costs."""
        return 0.0

    def compute(self, seconds: float) -> None:
        """Use the CPU for this time, in which events wait."""
        if seconds and self.alive and not self._computing:
            self._computing = True
            self.env.world.after(seconds, self._computed)

    def stall(self, seconds: float) -> None:
        """Use the CPU for a long time."""
        self.log(f"is busy for {seconds:.1f} s")
        self.compute(seconds)
        self.stops += 1

    def _note_trouble(self) -> None:
        self.troubled_at, self.stops = self.env.world.now, self.stops + 1

    def forget_time(self, seconds: float) -> None:
        """Let the time of the last trouble be as long ago as it was before the run was suspended."""
        self.troubled_at += seconds

    def _computed(self) -> None:
        self._computing = False
        self._run_held()

    def _run_held(self) -> None:
        while self._held and self.alive and not self.stopped and not self._computing:
            self._run(*self._held.pop(0))

    def access_files(self, operation: Callable[[], Any], then: Callable[..., None]) -> None:
        """Access the shared filesystem; `then` gets the result later."""
        self.env.files.access(self.node_index, self.deliver, operation, then)

    def accept(self, end: ConnectionEnd, term: int) -> bool:
        raise NotImplementedError

    def listen(self, end: ConnectionEnd, lost: Callable[[ConnectionEnd], None]) -> None:
        """Call `lost` when the peer of this connection is silent for HEARTBEAT_TIMEOUT_S."""
        end.wait = self.running_now
        self._listen_for(HEARTBEAT_TIMEOUT_S, end, lost)

    def _listen_for(self, seconds: float, end: ConnectionEnd, lost: Callable[[ConnectionEnd], None]) -> None:
        self.after(seconds, self._check_silence, self.running_now + seconds, end, lost)

    def _check_silence(self, due: float, end: ConnectionEnd, lost: Callable[[ConnectionEnd], None]) -> None:
        """Check for silence. While this process stalled the peer had nothing to answer: then the time starts again."""
        if end.closed:
            return
        if self.running_now - due > STALL_S:
            end.wait = self.running_now
        left = max(end.wait, self._silence_from) + HEARTBEAT_TIMEOUT_S - self.running_now
        if left > 1e-9:
            self._listen_for(left, end, lost)
        else:
            lost(end)

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self.log("is stopped")
        self._pause()
        self._note_trouble()

    def _pause(self) -> None:
        self.stopped, self._stopped_at = True, self.now

    def resume(self) -> None:
        """Continue after a stop of this process; nothing continues on a suspended host."""
        if self.stopped and self.alive and not self.host.suspended:
            self._note_trouble()
            self._continue()

    def suspend_host(self, alone: bool = False) -> None:
        """Stop everything on the host: of all hosts of the job at about the same time, or of this one alone."""
        if not self.host.suspended and self.host.alive:
            self.log("its host is suspended")
            self.host.suspend()
            self._troubled = alone or self.stopped
            if self.alive and not self.stopped:
                self._pause()
            if alone:
                self._note_trouble()

    def resume_host(self) -> None:
        """Continue everything on the host, including a process that was stopped before."""
        if self.host.suspended:
            self.log("its host is resumed")
            self.host.resume()
            if self._troubled:
                self._note_trouble()
            if self.alive and self.stopped:
                self._continue()

    def _continue(self) -> None:
        """Continue; pending events run now, timers first or in the order of arrival."""
        self.log("is continued")
        self.stopped, self.stops = False, self.stops + 1
        stopped = self.now - self._stopped_at
        self._not_running += max(0.0, stopped - STOPPED_S)
        if stopped > STALL_S:
            self._silence_from = self.running_now
        if self.env.world.chance.random() < 0.5:
            self._held.sort(key=lambda entry: not entry[0])
        self._run_held()

    def crash(self) -> None:
        """End the process while its host lives: peers see closed connections, supervisors the end of their owner."""
        if self.alive:
            self.log("crashes")
            self.crashed = True
            self._end()
            self.host.orphan()
            self._guard()

    def leave(self, reason: str, code: int) -> None:
        """Exit normally, with no process of the run left on the host."""
        if self.alive:
            self.log(f"leaves with {code}: {reason}")
            self.reason, self.code = reason, code
            self.host.end_all()
            self._end()
            self._guard()

    def _guard(self) -> None:
        """Let the guardian certify the end of this agent, unless it was killed together with it."""
        world, files = self.env.world, self.env.files
        if world.chance.random() < 0.7:
            write = lambda: files.access(  # noqa: E731
                self.node_index, lambda act, *args: None, lambda: files.certify(self.node_index), lambda _: None
            )
            self.host.after(world.between(0.0, 1.0), self.host.guard, write)

    def lose_host(self) -> None:
        if self.alive or self.host.processes:
            self.log("its host dies")
            self.env.network.die(self.node_index)
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
        late = (0.05, 1.0) if env.world.chance.random() < 0.9 else (1.0, MAX_LAUNCHER_DELAY_S)
        env.world.after(env.world.between(*late), self._notify_launcher)

    def _notify_launcher(self) -> None:
        env = self.env
        if env.network.is_blocked(self.node_index, 0) or (0 in env.agents and env.agents[0].host.suspended):
            env.world.after(1.0, self._notify_launcher)
        elif not {0, self.node_index} & env.network.dead:
            env.files.ended[self.node_index] = env.world.now
