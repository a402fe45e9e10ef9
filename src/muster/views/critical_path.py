"""The critical path: the chain of steps that led to the driver's start, each waited for by the next. Pure.

It is computed backwards, from the driver's start or from the current wait; see docs/explanation/views.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.views.cycle_events import CycleEvents
from muster.views.hosts import folded
from muster.views.phases import Phase

HEAD_EVENT_DELAY_S = 1.0  # workers start as soon as the head is up, but its event is written after all of theirs


@dataclass(frozen=True)
class PathStep:
    """A step that the bring-up waited for from `start` to `end`; `node_index` is None if it is not one node's step."""

    phase: Phase
    node_index: int | None
    start: float
    end: float
    what: str

    @property
    def seconds(self) -> float:
        return self.end - self.start


def critical_path(queue: Sequence[PathStep], cycle: CycleEvents, now: float | None) -> tuple[PathStep, ...]:
    """Return the steps to the driver of this cycle, in order, after the `queue` steps before its start.

    Without a driver the path leads to what the run waits for at `now`; without both it is only the queue.
    """
    if cycle.driver_start is None and now is None:
        return tuple(queue)
    known = [when for when in (cycle.driver_start, cycle.given_up, now) if when is not None]
    walk = _Walk(cycle, known[0])
    if cycle.driver_start is None:
        walk.from_waiting()
    else:
        walk.from_driver()
    walk.to_start()
    return (*queue, *reversed(walk.steps))


class _Walk:
    """Collect steps from the end to the start; a step ends where the next one begins, so there are no gaps."""

    def __init__(self, cycle: CycleEvents, end: float) -> None:
        self._cycle, self._at = cycle, end
        self.steps: list[PathStep] = []

    def _back_to(self, start: float, phase: Phase, node_index: int | None, what: str) -> None:
        start = max(min(start, self._at), self._cycle.start)
        if self._at > start:
            self.steps.append(PathStep(phase, node_index, start, self._at, what))
        self._at = start

    def to_start(self) -> None:
        """Attribute the rest, for which events name no cause, to the start of nodes."""
        self._back_to(self._cycle.start, Phase.LAUNCHING, None, "nodes start")

    def from_driver(self) -> None:
        """Begin with the last node or service that was ready before the driver started."""
        cycle = self._cycle
        ready = [(when, node_index, "") for node_index, when in cycle.ready.items()]
        gated = {(name, node_index) for node_index, names in cycle.awaits.items() for name in names}
        ready += [
            (when, node_index, name) for (name, node_index), when in cycle.served.items() if (name, node_index) in gated
        ]
        when, last, service = max((one for one in ready if one[0] <= self._at), default=(cycle.start, None, ""))
        self._back_to(when, Phase.JOINED, None, "the driver starts")
        if last is not None and service:
            self._from_service(last, f"waiting for {service} on {self._host(last)}")
        elif last is not None:
            self._from_ready(last, f"Ray starts on {self._host(last)}")

    def from_waiting(self) -> None:
        """Begin with the current wait: for a node's cleanup, Ray, arrival or services; the longest wait first."""
        cycle = self._cycle
        unclean = [(when, node_index) for node_index, when in cycle.stopping.items() if node_index not in cycle.arrived]
        unready = [(when, node_index) for node_index, when in cycle.starting.items() if node_index not in cycle.ready]
        if unclean:
            self._from_clean(min(unclean)[1], len(unclean) - 1)
        elif unready:
            node_index = min(unready)[1]
            self._from_ready(node_index, f"Ray starts on {self._host(node_index)}{_and_others(len(unready) - 1)}")
        elif cycle.closed is None or not cycle.arrived:
            self._back_to(cycle.start, Phase.LAUNCHING, None, "waiting for nodes")
        elif unserved := self._unserved():
            self._from_service(unserved[0][1], self._unserved_text(unserved))
        else:
            when, last = max((when, node_index) for node_index, when in cycle.arrived.items())
            self._back_to(when, Phase.JOINED, None, "waiting for the driver")
            self._from_arrival(last)

    def _from_ready(self, node_index: int, what: str) -> None:
        """Add the start of a node's Ray, which began with the last of the node's arrival, the membership, the head."""
        cycle = self._cycle
        started = cycle.starting.get(node_index, cycle.ready.get(node_index, cycle.start))
        causes = {"arrival": cycle.arrived.get(node_index), "round": cycle.closed, "head": self._head_for(node_index)}
        known = [(when, cause) for cause, when in causes.items() if when is not None and when <= started]
        when, cause = max(known, default=(cycle.start, ""))
        if node_index in cycle.starting:
            self._back_to(when, Phase.STARTING, node_index, what)
        else:
            self._back_to(when, Phase.ARRIVED, node_index, f"{self._host(node_index)} gets ready")
        if cause == "head" and cycle.head is not None:
            self._from_ready(cycle.head, f"Ray's head starts on {self._host(cycle.head)}")
        elif cause == "round":
            self._from_round(when)
        elif cause:
            self._from_arrival(node_index)

    def _unserved(self) -> list[tuple[float, int, str]]:
        """Return services that are not ready, with the time since when and the node."""
        cycle = self._cycle
        wanted = [
            (cycle.ranked[node_index], node_index, name) for node_index, names in cycle.awaits.items() for name in names
        ]
        return sorted(one for one in wanted if (one[2], one[1]) not in cycle.served)

    def _unserved_text(self, unserved: list[tuple[float, int, str]]) -> str:
        """Return the services with their nodes, the longest awaited first."""
        hosts: dict[str, list[str]] = {}
        for _, node_index, name in unserved:
            hosts.setdefault(name, []).append(self._host(node_index))
        (first, where), *others = hosts.items()
        return f"waiting for {first} on {folded(where)}" + "".join(f", {name} on {folded(on)}" for name, on in others)

    def _from_service(self, node_index: int, what: str) -> None:
        """Add the start of a service, which began with its node's rank: at its arrival or the membership's closing."""
        cycle = self._cycle
        begun, closed = cycle.ranked.get(node_index, cycle.start), cycle.closed
        self._back_to(begun, Phase.SERVICES, node_index, what)
        if closed is not None and cycle.arrived.get(node_index, cycle.start) < closed <= begun:
            self._from_round(closed)
        else:
            self._from_arrival(node_index)

    def _head_for(self, node_index: int) -> float | None:
        """Return when the head was up, for a node that had to wait for it."""
        cycle = self._cycle
        started, up = (
            cycle.starting.get(node_index),
            None if cycle.head in (None, node_index) else cycle.ready.get(cycle.head or 0),
        )
        return (
            min(up, started) if started is not None and up is not None and up <= started + HEAD_EVENT_DELAY_S else None
        )

    def _from_round(self, closed: float) -> None:
        """Add the closing of the membership, at the last arrival or at the end of the last call."""
        present = [(when, node_index) for node_index, when in self._cycle.arrived.items() if when <= closed]
        if present:
            when, last = max(present)
            self._back_to(when, Phase.ARRIVED, None, "last call for others")
            self._from_arrival(last)

    def _from_arrival(self, node_index: int) -> None:
        """Add a node's arrival, which began with the job or, in later cycles, with the end of the cycle before."""
        cycle = self._cycle
        self._back_to(
            cycle.arrived.get(node_index, self._at), Phase.ARRIVED, node_index, f"{self._host(node_index)} waits"
        )
        if node_index in cycle.stopping:
            self._from_clean(node_index)
        else:
            self._back_to(cycle.start, Phase.LAUNCHING, node_index, f"{self._host(node_index)} starts")

    def _from_clean(self, node_index: int, others: int = 0) -> None:
        cycle = self._cycle
        what = f"cleanup of {self._host(node_index)}{_and_others(others)}"
        self._back_to(cycle.stopping[node_index], Phase.FINISHING, node_index, what)
        self._back_to(cycle.start, Phase.FINISHING, None, "the previous driver is stopped")

    def _host(self, node_index: int) -> str:
        return self._cycle.hosts.get(node_index) or f"rank-{node_index}"


def _and_others(count: int) -> str:
    return f" (and {count} more)" if count else ""
