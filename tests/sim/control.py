"""Control requests of simulated programs, and whether they have their effect."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from muster.lifecycle.config import TermStart
from muster.lifecycle.control import ControlKind
from muster.lifecycle.events import Event, ExclusionRequested, RestartForbidden, RestartRequested
from muster.lifecycle.roles import Role
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState
from tests.sim.host import SimProcess
from tests.sim.outcomes import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

KINDS = (ControlKind.EXCLUDE_NODE, ControlKind.EXCLUDE_NODE, ControlKind.NO_RESTART, ControlKind.REQUEST_RESTART)
REASON = "the program says so"
HANDLING_STATES = (RunState.GATHERING, RunState.STARTING, RunState.RUNNING, RunState.RESTARTING)


def control_event(kind: ControlKind, node_index: int, at_once: bool, cycle: int) -> Event:
    """Return the event of a request that a program on this node made in this cycle."""
    if kind is ControlKind.EXCLUDE_NODE:
        return ExclusionRequested(node_index, REASON, at_once)
    return (RestartForbidden if kind is ControlKind.NO_RESTART else RestartRequested)(REASON, cycle)


def draw_request(chance: Random, request: Callable[[ControlKind, bool], None]) -> None:
    """Make a random request."""
    request(chance.choice(KINDS), chance.random() < 0.5)


class ControlChecker:
    """Records the requests that leaders have handled, as the status does, and checks every driver that starts."""

    def __init__(self) -> None:
        self._last_cycles: dict[int, int] = {}  # the last cycle that may use a node
        self._final_cycle: int | None = None  # the last cycle of the run
        self.handled = 0

    def inherited(self, start: TermStart) -> TermStart:
        """Return the start of a term with the requests that former leaders have published."""
        no_restart = None if self._final_cycle is None else REASON
        return replace(start, leaving=frozenset(self._last_cycles) - start.excluded, no_restart=no_restart)

    def check_handled(self, event: Event, before: RunState, machine: RunStateMachine) -> None:
        """Check the effect of an event on a run that was in the state `before`."""
        if before not in HANDLING_STATES or not isinstance(
            event, (ExclusionRequested, RestartForbidden, RestartRequested)
        ):
            return
        if isinstance(event, ExclusionRequested):
            self._check_exclusion(event, before, machine)
        elif event.cycle != machine.cycle:
            return  # made in an earlier cycle
        elif isinstance(event, RestartForbidden):
            self._final_cycle = event.cycle if self._final_cycle is None else self._final_cycle
        elif before is machine.state is RunState.RUNNING:
            raise InvariantViolated(f"cycle {machine.cycle} goes on, and a program has requested a restart")
        self.handled += 1

    def _check_exclusion(self, event: ExclusionRequested, before: RunState, machine: RunStateMachine) -> None:
        node = machine.nodes[event.node_index]
        goes_on = before is machine.state is RunState.RUNNING and node.role is Role.ACTIVE
        if goes_on and event.at_once:
            raise InvariantViolated(f"n{node.node_index} works on, and a program has excluded it")
        driven = before in (RunState.RUNNING, RunState.RESTARTING)
        last = machine.cycle if driven else machine.cycle - 1
        self._last_cycles[node.node_index] = min(last, self._last_cycles.get(node.node_index, last))

    def driver_starts(self, driver: SimProcess, machine: RunStateMachine) -> None:
        """Check that no driver starts after a ban, or on a node that a program has excluded."""
        if self._final_cycle is not None and driver.cycle > self._final_cycle:
            raise InvariantViolated(f"cycle {driver.cycle} starts, and a program has forbidden restarts")
        for node in machine.nodes:
            if node.role is Role.ACTIVE and driver.cycle > self._last_cycles.get(node.node_index, driver.cycle):
                raise InvariantViolated(f"n{node.node_index} works in cycle {driver.cycle}, and a program excluded it")
