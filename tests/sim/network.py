"""Connections as agents see them: what is sent arrives in order, late, or the connection is silent, or it has ended.

A way between two hosts can be blocked, in one direction or both. Nothing of a connection is lost by that: it waits, as
in the buffers of TCP, and comes in order when the way is free again. A connection can be broken from outside (both ends
see that at once, though both processes live), and it ends with the process at either end; not with its host, of which
nothing is heard any more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from tests.sim.world import World

LEAST_S, MOST_S = 0.0002, 0.02  # on the way


class Party(Protocol):
    """Whoever holds an end of a connection."""

    def heard(self, end: End, message: tuple[Any, ...]) -> None: ...

    def ended(self, end: End) -> None: ...


class Process(Protocol):
    """An agent, as far as the network is concerned; `host` is its number."""

    rank: int
    alive: bool

    def deliver(self, act: Callable[..., None], *args: Any) -> None: ...

    def accept(self, end: End, term: int) -> bool: ...


class End:
    """One side of a connection."""

    __slots__ = ("broken", "closed", "last", "network", "owner", "party", "peer", "rank", "stalled", "wait")

    def __init__(self, network: Network, owner: Process, party: Party) -> None:
        self.network, self.owner, self.party = network, owner, party
        self.peer: End | None = None  # until the connection is made
        self.rank = -1  # of the member at the other side, where that is known
        self.closed = self.broken = False
        self.last = 0.0  # when the latest message on its way will arrive
        self.stalled: list[tuple[Any, ...]] = []  # messages of ours that wait for a free way
        self.wait = 0.0  # when the owner last heard something, by its clock

    def send(self, *message: Any) -> None:
        if self.peer is not None and not self.closed and not self.broken:
            self.network.carry(self, self.peer, message)

    def close(self) -> None:
        """The other side sees it, after everything that was sent."""
        self.send()
        self.closed = True


class Network:
    """All ways between hosts, and all connections."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._blocked: Counter[tuple[int, int]] = Counter()
        self._ends: defaultdict[int, list[End]] = defaultdict(list)  # by host
        self.processes: dict[int, Process] = {}
        self.dead: set[int] = set()  # hosts of which nothing is heard
        self.meter: Callable[[int, int, tuple[Any, ...]], None] | None = None

    # -- ways ---------------------------------------------------------------------------------------------------

    def block(self, pairs: list[tuple[int, int]], seconds: float) -> None:
        """From the first of each pair to the second; a host always reaches itself."""
        self._blocked.update(pairs)
        self._world.after(seconds, self._free, pairs)

    def _free(self, pairs: list[tuple[int, int]]) -> None:
        self._blocked.subtract(pairs)
        for host in {source for source, _ in pairs}:
            for end in self._ends[host]:
                if end.stalled:
                    self._world.after(self._world.between(0.0, 1.0), self._flush, end)

    def is_blocked(self, source: int, target: int) -> bool:
        return bool(self._blocked) and self._blocked[source, target] > 0

    # -- connections --------------------------------------------------------------------------------------------

    def connect(self, owner: Process, party: Party, target: int, term: int) -> End:
        """The end at once; whether anybody is at the other side, what comes or does not come will tell."""
        end = End(self, owner, party)
        self._world.after(self._delay(owner.rank, target), self._arrive, end, target, term)
        return end

    def _arrive(self, end: End, target: int, term: int) -> None:
        source = end.owner.rank
        unheard = self.is_blocked(source, target) or self.is_blocked(target, source) or target in self.dead
        if unheard or end.closed or source in self.dead:
            return
        process = self.processes[target]
        end.peer = peer = End(self, process, end.party)
        peer.peer = end
        self._ends[source].append(end)
        self._ends[target].append(peer)
        if process.alive:
            process.deliver(self._accept, peer, term)
        else:
            peer.close()

    def _accept(self, end: End, term: int) -> None:
        if not end.owner.accept(end, term):
            end.close()

    def carry(self, end: End, peer: End, message: tuple[Any, ...]) -> None:
        source, target = end.owner.rank, peer.owner.rank
        if self.meter is not None:
            self.meter(source, target, message)
        arrival = max(end.last, self._world.now + self._delay(source, target))
        end.last = arrival
        self._world.after(arrival - self._world.now, self._come, end, peer, message)

    def _come(self, end: End, peer: End, message: tuple[Any, ...]) -> None:
        if end.stalled or self.is_blocked(end.owner.rank, peer.owner.rank):
            end.stalled.append(message)
        else:
            self._hand_over(peer, message)

    def _flush(self, end: End) -> None:
        assert end.peer is not None
        if not self.is_blocked(end.owner.rank, end.peer.owner.rank):
            messages, end.stalled = end.stalled, []
            for message in messages:
                self._hand_over(end.peer, message)

    def _hand_over(self, end: End, message: tuple[Any, ...]) -> None:
        if not end.closed and not end.broken and end.owner.alive:
            end.owner.deliver(_hear, end, message)

    def break_between(self, one: int, other: int) -> None:
        """Both ends see it; what was on its way is lost."""
        for end in [end for end in self._ends[one] if end.peer and end.peer.owner.rank == other and not end.broken]:
            assert end.peer is not None
            for side in (end, end.peer):
                side.broken = True
                if side.owner.alive and not side.closed:
                    side.owner.deliver(_see_end, side)

    def leave(self, process: Process) -> None:
        """It has ended: so have its connections."""
        for end in self._ends[process.rank]:
            end.close()

    def die(self, host: int) -> None:
        """No end is seen by anybody."""
        self.dead.add(host)
        for end in self._ends[host]:
            end.closed, end.stalled = True, []

    def _delay(self, source: int, target: int) -> float:
        return LEAST_S if source == target else self._world.between(LEAST_S, MOST_S)


def _hear(end: End, message: tuple[Any, ...]) -> None:
    if end.closed or end.broken:
        return
    if message:
        end.party.heard(end, message)
    else:
        _see_end(end)


def _see_end(end: End) -> None:
    if not end.closed:
        end.closed = True
        end.party.ended(end)
