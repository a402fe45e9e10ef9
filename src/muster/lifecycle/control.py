"""Control requests: what a program of the run asks of the state machine. Pure.

request           effect
exclude a node    at once: as if the node were lost while the driver runs, see policy.py; or at the next restart. In
                  both cases no later cycle uses the node, also if it is the leader's own: that one hands over.
no restart        no cycle begins any more in this attempt: what would begin one ends the run
restart           a new cycle, if the restart budget and the nodes suffice and there was progress; else the run ends

A request belongs to the cycle in which it was made. The exclusion of a node is valid in any later cycle, too.
"""

from __future__ import annotations

from enum import Enum

from muster.exit_codes import RESTART_REQUESTED
from muster.lifecycle import end_reasons
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.policy import Action, Decision
from muster.lifecycle.roles import RunNode

CONTROL_PHASE = "control"  # of the outcome of a run that ends because of a request


class ControlKind(str, Enum):
    """What a program requests."""

    EXCLUDE_NODE = "exclude_node"
    NO_RESTART = "no_restart"
    REQUEST_RESTART = "request_restart"


class ControlState:
    """The requests that still have an effect: nodes that leave at the next restart, and the ban on restarts."""

    def __init__(self, leaving: frozenset[int] = frozenset(), no_restart: str | None = None) -> None:
        """The values that a former leader has left."""
        self.leaving: dict[int, str] = dict.fromkeys(sorted(leaving), "a program has requested it")
        self.no_restart = no_restart  # the reason; None while restarts are allowed

    def exclude(self, node_index: int, reason: str) -> None:
        """Record that the node is not to be used again; the first reason is kept."""
        self.leaving.setdefault(node_index, reason)

    def forbid(self, reason: str) -> None:
        """Record that no cycle may follow; the first reason is kept."""
        self.no_restart = reason if self.no_restart is None else self.no_restart

    def restrict(self, decision: Decision) -> Decision:
        """Return the decision, or the end of the run instead of a new cycle that a program has forbidden."""
        if decision.action is Action.RESTART and self.no_restart is not None:
            return Decision(Action.END, f"no restart: {self.no_restart}")
        return decision

    def departure(self, node: RunNode) -> RunOutcome:
        """Return the outcome of a run that cannot continue without the node, which a program has excluded.

        It counts as the loss of a node, so that `--requeue-on node-fail` applies.
        """
        reason = f"{node.host} is not to be used again: {self.leaving[node.node_index]}"
        return end_reasons.loss(node, CONTROL_PHASE, reason)


def restart_requested(reason: str) -> RunOutcome:
    """Return the outcome of a run that cannot begin the cycle that a program has requested."""
    text = f"a program has requested a restart: {reason}"
    return RunOutcome("failed", RESTART_REQUESTED, text, phase=CONTROL_PHASE)
