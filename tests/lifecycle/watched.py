"""A state machine whose every transition is checked against the tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster.lifecycle.events import RunOutcome
from muster.lifecycle.state_machine import RunNode, RunStateMachine
from muster.lifecycle.states import NODE_TRANSITIONS, RUN_TRANSITIONS, RunState


class WatchedNodes(list[RunNode]):
    """The nodes; every change of a state must be in the table."""

    def __setitem__(self, rank: Any, node: Any) -> None:
        before = self[rank].state
        assert node.state is before or node.state in NODE_TRANSITIONS[before], f"node: {before} -> {node.state}"
        super().__setitem__(rank, node)


class WatchedProtocol(RunStateMachine):
    """Every change of the run's state must be in the table."""

    _state: RunState | None = None

    @property
    def state(self) -> RunState:
        assert self._state is not None
        return self._state

    @state.setter
    def state(self, state: RunState) -> None:
        assert self._state is None or state in RUN_TRANSITIONS[self._state], f"run: {self._state} -> {state}"
        self._state = state


def same_but_for_refinements(before: RunOutcome, after: RunOutcome) -> bool:
    """Return whether only the exit code of a stopped driver, or a reason appended to the first, differs."""
    code_refined = before.exit_code == after.exit_code or before.state == "stopped"
    reason_kept = after.end_reason == before.end_reason or after.end_reason.startswith(f"{before.end_reason}; ")
    rest = replace(after, exit_code=before.exit_code, end_reason=before.end_reason)
    return code_refined and reason_kept and rest == before
