"""The result of one event: commands, changes of nodes and of the run, and changes of services."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Union

from muster.lifecycle.events import Command, RunOutcome, StopNode
from muster.lifecycle.roles import RunNode
from muster.lifecycle.services import PlannedInstance
from muster.lifecycle.states import RunState

Change = Union[RunNode, RunState]


@dataclass(frozen=True)
class Transition:
    """Everything that follows from one event. Its parts are complete values: they may be executed in any order."""

    commands: tuple[Command, ...] = ()
    changes: tuple[Change, ...] = ()  # nodes and states of the run, in the order in which they changed
    service_changes: tuple[PlannedInstance, ...] = ()  # in order
    service_failure: PlannedInstance | None = None  # the instance whose failure ends the run


NO_TRANSITION = Transition()


class TransitionBuilder:
    """Collects the results of the current event."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.changes: list[Change] = []
        self.service_changes: list[PlannedInstance] = []
        self.service_failure: PlannedInstance | None = None

    def set_outcome(self, outcome: RunOutcome | None, deadline: float | None) -> None:
        """Add the outcome of the run to the stops of nodes, also of one that was stopped before this event ended it."""
        self.commands = [
            replace(command, outcome=outcome, deadline=deadline) if isinstance(command, StopNode) else command
            for command in self.commands
        ]

    def take(self) -> Transition:
        """Return the results and begin with those of the next event."""
        if not (self.commands or self.changes or self.service_changes):
            return NO_TRANSITION
        changes = tuple(self.changes), tuple(self.service_changes)
        transition = Transition(tuple(self.commands), *changes, self.service_failure)
        self.commands, self.changes, self.service_changes, self.service_failure = [], [], [], None
        return transition
