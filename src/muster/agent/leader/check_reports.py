"""The results of the nodes' built-in checks at the leader: which nodes arrive, and which are excluded.

    result                      what follows
    before the job, all pass    The node arrives: it may be given a rank.
    before the job, one fails   The node arrives excluded, as if a program had excluded it.
    after a failure, one fails  The node takes part in no further cycle.
    much slower than the others The same, before the next cycle. Nodes are compared when no connected one is checking.

Each failure is an event `check`, which is evidence against the node (rundir/node_evidence.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from muster.agent.control.messages import ChecksDone, Greeting
from muster.agent.leader.context import LeaderContext
from muster.lifecycle import events as m

MIN_COMPARED_NODES = 3  # of two nodes, neither is the outlier
CYCLE_CHECK_S = 60.0  # the next cycle waits for the nodes
END_CHECK_S, END_MARGIN_S = 10.0, 3.0  # the end of the run waits for them until its deadline


class CheckReports:
    """Holds back the arrival of nodes while they are checked. Its methods return events for the state machine."""

    def __init__(self, context: LeaderContext) -> None:
        self._publisher, self._machine = context.publisher, context.machine
        self._selected = context.job.selected_checks
        self._checking: dict[int, Greeting] = {}  # connected nodes, by index
        self._measured: dict[str, dict[int, float]] = {}  # by check and node
        self._slow: set[int] = set()

    def on_joined(self, greeting: Greeting) -> Iterator[m.Event]:
        """Handle an agent that has joined; its node arrives at once only if no result follows."""
        if greeting.checking:
            self._checking[greeting.node_index] = greeting
        else:
            yield _arrival(greeting)

    def on_lost(self, node_index: int) -> None:
        self._checking.pop(node_index, None)

    def on_done(self, node_index: int, message: ChecksDone) -> Iterator[m.Event]:
        """Handle a result. Nodes are excluded before others arrive, since with the last one the round may close."""
        greeting = self._checking.pop(node_index, None)
        if message.failure is not None:
            yield self._excluded(node_index, f"its check failed: {message.failure}", True)
        for check, value in message.measured.items():
            self._measured.setdefault(check, {})[node_index] = value
        if not self._checking:
            yield from self._compare()
        if greeting is not None:
            yield _arrival(greeting)

    def seconds_for_stop(self, outcome: m.RunOutcome | None, left: float, signalled: bool) -> float | None:
        """Return the seconds in which a node that is stopped may check itself; None if it is not to.

        `outcome`: of the run, None while it continues; `left`: seconds until the run ends without the node's report.
        """
        if outcome is None:
            return CYCLE_CHECK_S if self._selected else None
        seconds = min(END_CHECK_S, left - END_MARGIN_S)
        wanted = self._selected and outcome.state == "failed" and not signalled and seconds > 0
        return seconds if wanted else None

    def _compare(self) -> Iterator[m.Event]:
        """Exclude slow nodes, but one that works only later: it may be slow because of the job."""
        for check, fraction in self._selected.items():
            for node_index, part in slow_nodes(self._measured.get(check, {}), fraction or 0.0).items():
                if node_index not in self._slow:
                    self._slow.add(node_index)
                    reason = (
                        f"{check} is {part:.0%} of the nodes' median ({self._measured[check][node_index]:.2f} GB/s)"
                    )
                    yield self._excluded(node_index, reason, False)

    def _excluded(self, node_index: int, reason: str, at_once: bool) -> m.Event:
        host = self._machine.nodes[node_index].host
        self._publisher.phase(f"{host}: {reason}")
        self._publisher.event("check", rank=node_index, host=host, ok=False, reason=reason)
        return m.ExclusionRequested(node_index, reason, at_once)


def slow_nodes(measured: Mapping[int, float], fraction: float) -> dict[int, float]:
    """Return the nodes below a fraction of the median, each with its part of the median.

    >>> slow_nodes({0: 10.0, 1: 5.0, 2: 11.0}, 0.7)
    {1: 0.5}
    """
    if len(measured) < MIN_COMPARED_NODES:
        return {}
    values = sorted(measured.values())
    median = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return {node: value / median for node, value in measured.items() if value < fraction * median}


def _arrival(greeting: Greeting) -> m.Event:
    return m.Arrived(greeting.node_index, greeting.host, greeting.location)
