"""The faults of a schedule: each strikes at a random time or just after another event."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tests.sim.agent import Environment
from tests.sim.follower import Follower
from tests.sim.host import CLOCK_DRIFT

MAX_FAULT_S = 45.0
SOON_S, LATER_S = 1e-4, 0.5  # shortest and longest delay after a triggering event
TRIGGERS = ("claim", "term", "membership", "round", "driver", "loss", "stepped down")
KINDS = (
    "crash",
    "host",
    "stop",
    "stutter",
    "cut",
    "cut",
    "deaf",
    "mute",
    "flap",
    "split",
    "break",
    "lag",
    "pause",
    "fail",
    "ailing",
    "ask",
    "slow",
    "rate",
    "wall clock",
    "supervisor",
    "launcher",
    "busy",
    "freeze",
    "suspend",
)
MAX_LATENCY_S = 2.5  # of a slow network: two messages and an answer pass within a lease
RESUME_SKEW_S = 1.5  # in which all nodes of a job are suspended, and resumed
SUSPENSIONS_S = ((1.0, 15.0), (1.0, 60.0), (60.0, 600.0))  # durations
MAX_BUSY_S = 6.0  # of a leader's event loop: shorter than any timeout
LIE_S, SHIELD_S = 5.0, 15.0  # how long a wrong report is visible, and the time after it without other faults


class Faults:
    """Draws random faults; all of them are over at `until`."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        self._env, self._agents, self._until = env, agents, until
        self._world = env.world
        self._shielded_until = 0.0
        self._suspended_until = 0.0
        self._busy_until = 0.0  # the end of the last fault of the network or of a process
        self._waiting: list[tuple[str, int]] = []  # triggering events, and the number of occurrences to skip
        env.checker.on_note = self._note
        for _ in range(self._world.chance.choice((0, 1, 2, 3, 4, 5, 6, 8, 10, 12))):
            if self._world.chance.random() < 0.5:
                self._world.after(self._world.between(0.0, until), self._strike)
            else:
                self._waiting.append((self._world.chance.choice(TRIGGERS), self._world.chance.choice((0, 0, 1, 2, 5))))

    def _note(self, what: str) -> None:
        for entry in [entry for entry in self._waiting if entry[0] == what]:
            self._waiting.remove(entry)
            if entry[1]:
                self._waiting.append((what, entry[1] - 1))
            elif self._world.now < self._until:
                self._world.after(SOON_S * (LATER_S / SOON_S) ** self._world.chance.random(), self._strike)

    def _strike(self) -> None:
        world = self._world
        if world.now < self._shielded_until:
            return
        kind, target = world.chance.choice(KINDS), self._target()
        seconds = min(world.between(0.5, MAX_FAULT_S), max(0.0, self._until - world.now))
        agent, others = self._agents[target], [agent.node_index for agent in self._agents if agent.node_index != target]
        world.log(f"fault: {kind}, n{target}, {seconds:.1f} s")
        if kind in ("crash", "host", "stop", "stutter"):
            self._hit(kind, agent, seconds)
        elif kind in ("cut", "deaf", "mute", "split", "flap"):
            self._part(kind, target, others, seconds)
        elif kind == "break":
            for other in others if world.chance.random() < 0.5 else [world.chance.choice(others)]:
                self._env.network.break_between(target, other)
        elif kind in ("lag", "pause"):
            self._slow(kind, [target] if world.chance.random() < 0.5 else [target, *others], seconds)
        elif kind in ("fail", "ailing"):
            for node_index in [target] if kind == "fail" else world.chance.sample(others, (len(others) + 1) // 2):
                self._agents[node_index].report(world.chance.choice(("ray", "health")))
        elif kind in ("slow", "rate", "wall clock"):
            self._disturb(kind, target, seconds)
        elif kind == "supervisor":
            if agent.alive and not agent.stopped:
                agent.host.lose_supervisors()
        elif kind == "launcher":
            self._report_wrongly(agent)
        elif kind == "freeze":
            if world.now >= self._suspended_until:
                agent.suspend_host(alone=True)
                world.after(seconds, self._thaw, agent)
        elif kind == "suspend":
            seconds = self._suspend(world.between(*world.chance.choice(SUSPENSIONS_S)))
        elif kind == "busy":
            if agent.alive and not agent.stopped:
                agent.stall(world.between(0.5, MAX_BUSY_S))
        elif world.chance.random() < 0.3:
            self._leader_stops()
        self._busy_until = max(self._busy_until, world.now + 2 * seconds)

    def _suspend(self, seconds: float) -> float:
        """Suspend the job, unless it is suspended; return how long that takes."""
        if self._world.now < self._suspended_until:
            return 0.0
        self._suspended_until = self._world.now + seconds + 2 * RESUME_SKEW_S
        suspend(self._env, self._agents, seconds)
        return seconds + RESUME_SKEW_S

    def _thaw(self, agent: Follower) -> None:
        if self._world.now >= self._suspended_until:  # else it is resumed with the others
            agent.resume_host()

    def _hit(self, kind: str, agent: Follower, seconds: float) -> None:
        if kind == "crash":
            agent.crash()
        elif kind == "host":
            agent.lose_host()
        elif agent.alive and not agent.stopped:
            agent.stop()
            if kind == "stop":
                self._world.after(seconds, agent.resume)
            else:
                self._world.after(first := self._world.between(5.0, 9.5), agent.resume)
                self._world.after(first + self._world.between(0.0, 0.5), self._hit, "stop", agent, seconds)

    def _target(self) -> int:
        """Return the leader in half of the cases, else any node."""
        leads = [agent.node_index for agent in self._agents if agent.alive and agent.leader and not agent.leader.over]
        if leads and self._world.chance.random() < 0.5:
            return leads[-1]
        return self._world.chance.randrange(len(self._agents))

    def _part(self, kind: str, target: int, others: list[int], seconds: float) -> None:
        """Cut one node off from some others, in one or both directions; or split the nodes in two groups."""
        chance = self._world.chance
        one, other = [target], chance.sample(others, chance.randint(1, len(others)))
        if kind == "split":
            one = [target, *(node_index for node_index in others if chance.random() < 0.5)]
            other = [node_index for node_index in others if node_index not in one]
        there, back = list(product(one, other)), list(product(other, one))
        self._world.log(f"  between {one} and {other}")
        if kind == "flap":
            self._flap(there, back, 4)
        else:
            ways = there + back if kind in ("cut", "split") else back if kind == "deaf" else there
            self._env.network.block(ways, seconds)

    def _flap(self, there: list[tuple[int, int]], back: list[tuple[int, int]], times: int) -> None:
        """Block alternating directions, with short gaps in which all messages pass."""
        seconds, moment = self._world.between(1.0, 11.0), self._world.between(0.0, 1.5)
        if times and self._world.now < self._until:
            self._env.network.block(self._world.chance.choice((there, back, there + back)), seconds)
            self._world.after(seconds + moment, self._flap, there, back, times - 1)

    def _slow(self, kind: str, hosts: list[int], seconds: float) -> None:
        files, world = self._env.files, self._world
        files.slow_until = max(files.slow_until, world.now + seconds)
        for host in hosts:
            if kind == "pause":
                files.pauses[host] = world.now + seconds
            else:
                files.lag[host] = seconds
                world.after(seconds, self._catch_up, host)

    def _disturb(self, kind: str, target: int, seconds: float) -> None:
        """Delay messages of a host, or change its clocks."""
        world, host = self._world, self._agents[target].host
        if kind == "slow":
            self._env.network.slow_down(target, world.between(0.1, MAX_LATENCY_S), seconds)
        elif kind == "rate":
            host.set_rate(world.between(1.0 - CLOCK_DRIFT, 1.0 + CLOCK_DRIFT))
        else:
            host.step_wall_clock(world.chance.choice((-86400.0, -60.0, -1.0, 1.0, 3600.0)))

    def _report_wrongly(self, agent: Follower) -> None:
        """Let the launcher report the end of a task that lives.

        The leader can only see that a report is wrong if the node answers after it. A node that gets out of reach at
        the same time cannot be told from a dead one, so other faults pause.
        """
        world, ended = self._world, self._env.files.ended
        if agent.alive and agent.node_index not in ended and world.now > self._busy_until + SHIELD_S:
            self._shielded_until = world.now + SHIELD_S
            ended[agent.node_index] = world.now
            world.after(LIE_S, self._withdraw, agent)

    def _withdraw(self, agent: Follower) -> None:
        if agent.alive:
            self._env.files.ended.pop(agent.node_index, None)

    def _catch_up(self, host: int) -> None:
        self._env.files.lag.pop(host, None)

    def _leader_stops(self) -> None:
        for agent in self._agents:
            if agent.alive and not agent.stopped and agent.leader is not None and not agent.leader.over:
                agent.leader.stop()


def suspend(env: Environment, agents: Sequence[Follower], seconds: float) -> None:
    """Suspend all hosts within RESUME_SKEW_S, and resume them within as much after so many seconds."""
    world, end = env.world, RESUME_SKEW_S + seconds
    for agent in agents:
        world.after(world.between(0.0, RESUME_SKEW_S), agent.suspend_host)
        world.after(world.between(end, end + RESUME_SKEW_S), agent.resume_host)
    world.after(end, _forget_time, env, agents, end)


def _forget_time(env: Environment, agents: Sequence[Follower], seconds: float) -> None:
    env.network.forget_time(seconds)
    for agent in agents:
        agent.forget_time(seconds)
