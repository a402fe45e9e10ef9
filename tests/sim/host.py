"""A simulated host: its clock, its lease, its processes, and their supervisors, which act without an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.election.timing import LEASE_KILL_S
from muster.process.lease_enforcer import LeaseAction, LeaseEnforcer
from tests.sim.world import World

NEVER = float("inf")
CLOCK_DRIFT = 0.01  # relative error of a clock
ORPHAN_GRACE_S = 30.0  # of supervisors for processes whose agent has ended
GUARDIAN_POLL_S = 0.1
ENFORCER_POLL_S = 0.5  # between two checks of a lease by a supervisor
MAX_SCAN_S = 1.0  # in which an agent kills the processes of a lost supervisor
DRIVER, RAY, SERVICE, GANG = "driver", "ray", "service", "gang"


class SimProcess:
    """A process of the run."""

    __slots__ = ("cycle", "ended", "held", "host", "kind", "on_end", "rank", "term")

    def __init__(self, host: Host, kind: str, term: int, cycle: int, rank: int) -> None:
        self.host, self.kind, self.term, self.cycle, self.rank = host, kind, term, cycle, rank
        self.ended = False
        self.held = False  # stopped by its supervisor
        self.on_end: Callable[[str], None] = lambda how: None  # called once

    @property
    def runs(self) -> bool:
        """Whether it can do anything: it is not stopped."""
        return not (self.ended or self.held or self.host.suspended)


class Host:
    """A host. Times are in seconds of its clock.

    Everything on a suspended host stops. When it is resumed, supervisors check the lease before a process goes on.
    """

    def __init__(self, world: World, node_index: int, exact: bool = False) -> None:
        self._world, self.node_index = world, node_index
        self.rate = 1.0 if exact else world.between(1.0 - CLOCK_DRIFT, 1.0 + CLOCK_DRIFT)
        self._offset = 0.0 if exact else world.between(0.0, 1000.0)
        self._wall_offset = world.between(-1e6, 1e6)
        self.alive = True
        self.processes: list[SimProcess] = []
        self.lease = NEVER
        self._watched = False
        self.suspended = False
        self.on_resume: list[Callable[[], None]] = []  # what was due while the host was suspended
        self._enforcer = LeaseEnforcer()  # of all supervisors
        self._checked = self.now  # when they checked the lease last
        self._enforcer.check(self._checked, expired=False, fenced=False)
        self.fenced = False  # supervisors have enforced the lease
        self.on_start: Callable[[SimProcess], None] = lambda process: None
        self.on_continue: Callable[[SimProcess], None] = lambda process: None

    @property
    def now(self) -> float:
        return self._offset + self._world.now * self.rate

    @property
    def wall(self) -> float:
        """The wall clock, which may be stepped at any time."""
        return self.now + self._wall_offset

    def step_wall_clock(self, seconds: float) -> None:
        self._wall_offset += seconds

    def set_rate(self, rate: float) -> None:
        """Change the rate of the monotonic clock, as time synchronization does; the clock never jumps."""
        self._offset, self.rate = self.now - self._world.now * rate, rate
        if self._watched:  # timers run by the clock: check the lease when it ends by the new rate
            self._check_lease()

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self._world.after(seconds / self.rate, act, *args)

    # -- the lease ----------------------------------------------------------------------------------------------

    @property
    def expired(self) -> bool:
        return self.now >= self.lease - 1e-9

    def renew(self, until: float) -> None:
        """Renew the lease. An expired lease stays expired: its processes are being killed."""
        if not self.expired:
            self._renew(until)

    def renew_again(self, until: float) -> None:
        """Renew a lease that has expired while this host was suspended, unless its processes are being killed."""
        if not self.fenced and until > self.now:
            self._renew(until)
            self._enforce()

    def _renew(self, until: float) -> None:
        self.lease = until
        if not self._watched and until < NEVER:
            self._watched = True
            self.after(until - self.now, self._check_lease)

    def clear(self) -> None:
        """Drop the lease: nothing runs here, or no other leader can take over."""
        self.lease, self.fenced = NEVER, False
        self._enforcer = LeaseEnforcer()
        self._enforce()

    def suspend(self) -> None:
        self._check_regularly()
        self.suspended = True

    def resume(self) -> None:
        """Continue; supervisors come first."""
        self.suspended = False
        self._enforce()
        for process in self.processes:
            self._continues(process)
        due, self.on_resume = self.on_resume, []
        for act in due:
            act()

    def _check_regularly(self) -> None:
        """Let the supervisors check the lease up to now, as they do regularly: nothing has happened meanwhile."""
        while self._checked + ENFORCER_POLL_S < self.now:
            self._checked += ENFORCER_POLL_S
            self._enforcer.check(self._checked, expired=False, fenced=self.fenced)

    def _check(self) -> LeaseAction:
        self._checked = self.now
        return self._enforcer.check(self._checked, self.expired, self.fenced)

    def _enforce(self) -> None:
        """Let the supervisors do what the lease demands."""
        if self.suspended:
            return
        action = self._check()
        if action is LeaseAction.STOP:
            self.after(ENFORCER_POLL_S, self._enforce)
        elif action is LeaseAction.KILL and not self.fenced:
            self._kill_soon()
        for process in self.processes:
            held, process.held = process.held, action is LeaseAction.STOP or (process.held and self.expired)
            if held and not process.held:
                self._continues(process)

    def _continues(self, process: SimProcess) -> None:
        if process.runs:
            self.on_continue(process)

    def _kill_soon(self) -> None:
        self.fenced = True
        late = LEASE_KILL_S if self._world.chance.random() < 0.2 else self._world.between(0.0, LEASE_KILL_S)
        self.after(late, self._kill, list(self.processes))

    def _check_lease(self) -> None:
        if self.suspended:
            self.on_resume.append(self._check_lease)
        elif self.lease == NEVER:
            self._watched = False
        elif self.now < self.lease - 1e-9:
            self.after(self.lease - self.now, self._check_lease)
        else:
            self._watched = False
            self._check_regularly()
            self._enforce()

    def _kill(self, processes: list[SimProcess]) -> None:
        if self.suspended:
            self.on_resume.append(lambda: self._kill(processes))
            return
        for process in processes:
            self.end(process, "was killed by SIGKILL")

    # -- processes ----------------------------------------------------------------------------------------------

    def start(self, kind: str, term: int, cycle: int, rank: int) -> SimProcess | None:
        """Start a process; return None if the lease has expired, which supervisors check first."""
        if self.expired or not self.alive or self.suspended:
            return None
        process = SimProcess(self, kind, term, cycle, rank)
        self.processes.append(process)
        self.on_start(process)
        return process

    def exit_after(self, seconds: float, process: SimProcess, how: str) -> None:
        """Let a process exit by itself, once it has run for this time; a stop of its host counts as one second."""
        self.after(seconds, self._exit, process, how)

    def _exit(self, process: SimProcess, how: str) -> None:
        if self.suspended:
            self.on_resume.append(lambda: self.exit_after(1.0, process, how))
        elif process.held:
            self.exit_after(1.0, process, how)
        else:
            self.end(process, how)

    def end(self, process: SimProcess, how: str) -> None:
        if not process.ended:
            process.ended = True
            self.processes.remove(process)
            process.on_end(how)

    def end_all(self) -> None:
        for process in list(self.processes):
            self.end(process, "was ended by SIGTERM")

    def lose_supervisors(self) -> None:
        """Kill the supervisors: the agent finds their processes and kills them soon."""
        for process in self.processes:
            self.after(self._world.between(0.0, MAX_SCAN_S), self._kill, [process])

    def orphan(self) -> None:
        """End all processes after the agent is gone: supervisors kill them when grace or lease are over."""
        grace = self._world.chance.choice((0.0, 2.0, ORPHAN_GRACE_S))
        for process in self.processes:
            self.after(self._world.between(0.0, grace), self._kill, [process])

    def guard(self, certify: Callable[[], None]) -> None:
        """Certify the agent's end once no process of it is left. A guardian that dies with its agent never does."""
        if self.suspended:
            self.on_resume.append(lambda: self.guard(certify))
        elif self.alive and not self.processes:
            certify()
        elif self.alive:
            self.after(GUARDIAN_POLL_S, self.guard, certify)

    def die(self) -> None:
        self.alive = False
        for process in list(self.processes):
            process.on_end = lambda how: None
            self.end(process, "")
