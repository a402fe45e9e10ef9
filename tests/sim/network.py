"""Simulated connections: messages arrive in order and late, or the connection is silent, or it has ended.

The path between two hosts can be blocked, in one or both directions. Blocked messages wait, as in the buffers of TCP,
and arrive in order when the path is free again. A connection can be broken from outside (both live processes see that
at once). It ends with the process at either end, but not with its host, which is only silent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from tests.sim.world import World

MIN_LATENCY_S, MAX_LATENCY_S = 0.0002, 0.02  # latency


class Receiver(Protocol):
    """The object that handles the messages of a connection."""

    def on_message(self, end: ConnectionEnd, message: tuple[Any, ...]) -> None: ...

    def on_closed(self, end: ConnectionEnd) -> None: ...


class Process(Protocol):
    """The part of an agent that the network uses."""

    node_index: int
    alive: bool
    stopped: bool
    troubled_at: float

    def deliver(self, act: Callable[..., None], *args: Any) -> None: ...

    def accept(self, end: ConnectionEnd, term: int) -> bool: ...


class ConnectionEnd:
    """One side of a connection."""

    __slots__ = ("broken", "closed", "last", "network", "node_index", "owner", "peer", "receiver", "stalled", "wait")

    def __init__(self, network: Network, owner: Process, receiver: Receiver) -> None:
        self.network, self.owner, self.receiver = network, owner, receiver
        self.peer: ConnectionEnd | None = None  # None until the connection is made
        self.node_index = -1  # of the member at the other side, if known
        self.closed = self.broken = False
        self.last = 0.0  # arrival time of the latest message on its way
        self.stalled: list[tuple[Any, ...]] = []  # messages that wait for a free path
        self.wait = 0.0  # time of the last message received, by the owner's clock

    def send(self, *message: Any) -> None:
        if self.peer is not None and not self.closed and not self.broken:
            self.network.carry(self, self.peer, message)

    def close(self) -> None:
        """Close the connection; the other side sees it after all sent messages."""
        self.send()
        self.closed = True


class Network:
    """All paths between hosts, and all connections."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._blocked: Counter[tuple[int, int]] = Counter()
        self._troubled_at: defaultdict[tuple[int, int], float] = defaultdict(lambda: float("-inf"))  # by path
        self._latency: dict[int, float] = {}  # additional latency by host
        self._ends: defaultdict[int, list[ConnectionEnd]] = defaultdict(list)  # by host
        self.processes: dict[int, Process] = {}
        self.dead: set[int] = set()  # hosts that send nothing any more
        self.meter: Callable[[int, int, tuple[Any, ...]], None] | None = None

    # -- paths --------------------------------------------------------------------------------------------------

    def block(self, pairs: list[tuple[int, int]], seconds: float) -> None:
        """Block the path from the first to the second host of each pair; a host always reaches itself."""
        self._blocked.update(pairs)
        self._note_trouble(pairs, self._world.now + seconds)
        self._world.after(seconds, self._free, pairs)

    def troubled(self, one: int, other: int) -> float:
        """Return when the path between two hosts, in any direction, was last blocked or broken."""
        return max(self._troubled_at[one, other], self._troubled_at[other, one])

    def _note_trouble(self, pairs: list[tuple[int, int]], when: float) -> None:
        for pair in pairs:
            self._troubled_at[pair] = max(self._troubled_at[pair], when)

    def forget_time(self, seconds: float) -> None:
        """Let all trouble be as long ago as it was before the run was suspended."""
        for pair in self._troubled_at:
            self._troubled_at[pair] += seconds

    def _free(self, pairs: list[tuple[int, int]]) -> None:
        self._blocked.subtract(pairs)
        for host in {source for source, _ in pairs}:
            for end in self._ends[host]:
                if end.stalled:
                    self._world.after(self._world.between(0.0, 1.0), self._flush, end)

    def is_blocked(self, source: int, target: int) -> bool:
        return bool(self._blocked) and self._blocked[source, target] > 0

    def slow_down(self, host: int, latency: float, seconds: float) -> None:
        """Delay the messages from and to a host by up to this latency."""
        self._latency[host] = latency
        self._world.after(seconds, self._speed_up, host)

    def _speed_up(self, host: int) -> None:
        self._latency.pop(host, None)

    # -- connections --------------------------------------------------------------------------------------------

    def connect(self, owner: Process, receiver: Receiver, target: int, term: int) -> ConnectionEnd:
        """Return an end at once; messages, or their absence, show whether the other side is reachable."""
        end = ConnectionEnd(self, owner, receiver)
        self._world.after(self._delay(owner.node_index, target), self._arrive, end, target, term)
        return end

    def _arrive(self, end: ConnectionEnd, target: int, term: int) -> None:
        source = end.owner.node_index
        unheard = self.is_blocked(source, target) or self.is_blocked(target, source) or target in self.dead
        if unheard or end.closed or source in self.dead:
            return
        process = self.processes[target]
        end.peer = peer = ConnectionEnd(self, process, end.receiver)
        peer.peer = end
        self._ends[source].append(end)
        self._ends[target].append(peer)
        if process.alive:
            process.deliver(self._accept, peer, term)
        else:
            peer.close()

    def _accept(self, end: ConnectionEnd, term: int) -> None:
        if not end.owner.accept(end, term):
            end.close()

    def carry(self, end: ConnectionEnd, peer: ConnectionEnd, message: tuple[Any, ...]) -> None:
        source, target = end.owner.node_index, peer.owner.node_index
        if self.meter is not None:
            self.meter(source, target, message)
        arrival = max(end.last, self._world.now + self._delay(source, target))
        end.last = arrival
        self._world.after(arrival - self._world.now, self._come, end, peer, message)

    def _come(self, end: ConnectionEnd, peer: ConnectionEnd, message: tuple[Any, ...]) -> None:
        if end.stalled or self.is_blocked(end.owner.node_index, peer.owner.node_index):
            end.stalled.append(message)
        else:
            self._deliver(peer, message)

    def _flush(self, end: ConnectionEnd) -> None:
        assert end.peer is not None
        if not self.is_blocked(end.owner.node_index, end.peer.owner.node_index):
            messages, end.stalled = end.stalled, []
            for message in messages:
                self._deliver(end.peer, message)

    def _deliver(self, end: ConnectionEnd, message: tuple[Any, ...]) -> None:
        if not end.closed and not end.broken and end.owner.alive:
            end.owner.deliver(_receive, end, message)

    def break_between(self, one: int, other: int) -> None:
        """Break the connections between two hosts: both ends see it, messages on their way are lost."""
        self._note_trouble([(one, other)], self._world.now)
        for end in [
            end for end in self._ends[one] if end.peer and end.peer.owner.node_index == other and not end.broken
        ]:
            assert end.peer is not None
            for side in (end, end.peer):
                side.broken = True
                if side.owner.alive and not side.closed:
                    side.owner.deliver(_close_received, side)

    def leave(self, process: Process) -> None:
        """Close the connections of a process that ended."""
        for end in self._ends[process.node_index]:
            end.close()

    def die(self, host: int) -> None:
        """Silence a host: no peer sees its connections end."""
        self.dead.add(host)
        for end in self._ends[host]:
            end.closed, end.stalled = True, []

    def _delay(self, source: int, target: int) -> float:
        if source == target:
            return MIN_LATENCY_S
        delay = self._world.between(MIN_LATENCY_S, MAX_LATENCY_S)
        most = max(self._latency.get(source, 0.0), self._latency.get(target, 0.0)) if self._latency else 0.0
        return delay + (self._world.between(0.0, most) if most else 0.0)


def _receive(end: ConnectionEnd, message: tuple[Any, ...]) -> None:
    if end.closed or end.broken:
        return
    if message:
        end.receiver.on_message(end, message)
    else:
        _close_received(end)


def _close_received(end: ConnectionEnd) -> None:
    if not end.closed:
        end.closed = True
        end.receiver.on_closed(end)
