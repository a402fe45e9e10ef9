"""What goes wrong in a schedule, and when: at some time, or at the very moment at which something else happens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tests.sim.agent import Surroundings
from tests.sim.follower import Heir

LONGEST_S = 45.0
SOON_S, LATER_S = 1e-4, 0.5  # after a moment
MOMENTS = ("claim", "lead", "charter", "round", "driver", "loss", "gave way")
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
)


class Faults:
    """Draws a few of them, and sees to it that all are over at the end."""

    def __init__(self, around: Surroundings, agents: Sequence[Heir], until: float) -> None:
        self._around, self._agents, self._until = around, agents, until
        self._world = around.world
        self._waiting: list[tuple[str, int]] = []  # moments, and how often they are to pass before
        around.watch.on_note = self._note
        for _ in range(self._world.chance.choice((0, 1, 2, 3, 4, 5, 6, 8, 10, 12))):
            if self._world.chance.random() < 0.5:
                self._world.after(self._world.between(0.0, until), self._strike)
            else:
                self._waiting.append((self._world.chance.choice(MOMENTS), self._world.chance.choice((0, 0, 1, 2, 5))))

    def _note(self, what: str) -> None:
        for entry in [entry for entry in self._waiting if entry[0] == what]:
            self._waiting.remove(entry)
            if entry[1]:
                self._waiting.append((what, entry[1] - 1))
            elif self._world.now < self._until:
                self._world.after(SOON_S * (LATER_S / SOON_S) ** self._world.chance.random(), self._strike)

    def _strike(self) -> None:
        world = self._world
        kind, target = world.chance.choice(KINDS), self._target()
        seconds = min(world.between(0.5, LONGEST_S), max(0.0, self._until - world.now))
        agent, others = self._agents[target], [agent.rank for agent in self._agents if agent.rank != target]
        world.say(f"fault: {kind}, n{target}, {seconds:.1f} s")
        if kind in ("crash", "host", "stop", "stutter"):
            self._hit(kind, agent, seconds)
        elif kind in ("cut", "deaf", "mute", "split", "flap"):
            self._part(kind, target, others, seconds)
        elif kind == "break":
            for other in others if world.chance.random() < 0.5 else [world.chance.choice(others)]:
                self._around.network.break_between(target, other)
        elif kind in ("lag", "pause"):
            self._slow(kind, [target] if world.chance.random() < 0.5 else [target, *others], seconds)
        elif kind in ("fail", "ailing"):
            for rank in [target] if kind == "fail" else world.chance.sample(others, (len(others) + 1) // 2):
                self._agents[rank].report(world.chance.choice(("ray", "health")))
        elif world.chance.random() < 0.3:
            self._leader_stops()

    def _hit(self, kind: str, agent: Heir, seconds: float) -> None:
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
        """The leader as often as not."""
        leads = [agent.rank for agent in self._agents if agent.alive and agent.leader and not agent.leader.over]
        if leads and self._world.chance.random() < 0.5:
            return leads[-1]
        return self._world.chance.randrange(len(self._agents))

    def _part(self, kind: str, target: int, others: list[int], seconds: float) -> None:
        """One node from some others, in both directions or in one; or two parties from each other."""
        chance = self._world.chance
        one, other = [target], chance.sample(others, chance.randint(1, len(others)))
        if kind == "split":
            one = [target, *(rank for rank in others if chance.random() < 0.5)]
            other = [rank for rank in others if rank not in one]
        there, back = list(product(one, other)), list(product(other, one))
        self._world.say(f"  between {one} and {other}")
        if kind == "flap":
            self._flap(there, back, 4)
        else:
            ways = there + back if kind in ("cut", "split") else back if kind == "deaf" else there
            self._around.network.block(ways, seconds)

    def _flap(self, there: list[tuple[int, int]], back: list[tuple[int, int]], times: int) -> None:
        """For a while in one direction, for another in the other, with moments in which all comes through."""
        seconds, moment = self._world.between(1.0, 11.0), self._world.between(0.0, 1.5)
        if times and self._world.now < self._until:
            self._around.network.block(self._world.chance.choice((there, back, there + back)), seconds)
            self._world.after(seconds + moment, self._flap, there, back, times - 1)

    def _slow(self, kind: str, hosts: list[int], seconds: float) -> None:
        files, world = self._around.files, self._world
        for host in hosts:
            if kind == "pause":
                files.pauses[host] = world.now + seconds
            else:
                files.lag[host] = seconds
                world.after(seconds, self._catch_up, host)

    def _catch_up(self, host: int) -> None:
        self._around.files.lag.pop(host, None)

    def _leader_stops(self) -> None:
        for agent in self._agents:
            if agent.alive and not agent.stopped and agent.leader is not None and not agent.leader.over:
                agent.leader.stop()
