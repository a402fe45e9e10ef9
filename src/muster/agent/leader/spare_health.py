"""Periodic checks of spares, built-in and the job's own: started while a node waits as a spare, not while it works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.agent.control.messages import StartCheck, StopCheck
from muster.agent.leader.context import LeaderContext
from muster.lifecycle.node_checks import repeated_checks
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.states import NodeState


class SpareHealth:
    """Follows the state machine's changes: starts and stops checks on the nodes, and reports unhealthy ones."""

    def __init__(self, context: LeaderContext) -> None:
        self._connections, self._publisher = context.connections, context.publisher
        self._text, self._interval = context.job.health_check, context.job.spare_check_interval
        self._any = bool(self._text or repeated_checks(context.job.selected_checks))
        self._checking: set[int] = set()
        self._unhealthy: set[int] = set()

    def update(self, moves: Sequence[Any]) -> None:
        for node in moves:
            if isinstance(node, RunNode):
                self._start_or_stop_check(node)
                self._report(node)

    def _start_or_stop_check(self, node: RunNode) -> None:
        waits = node.role is Role.SPARE and node.state is NodeState.ARRIVED
        if waits and node.node_index not in self._checking and self._any and self._interval > 0:
            self._checking.add(node.node_index)
            self._connections.send(node.node_index, StartCheck(self._text, self._interval))
        elif not waits and node.node_index in self._checking:
            self._checking.discard(node.node_index)
            self._connections.send(node.node_index, StopCheck())

    def _report(self, node: RunNode) -> None:
        if node.unhealthy_reason is not None and node.node_index not in self._unhealthy:
            self._unhealthy.add(node.node_index)
            self._publisher.phase(f"{node.host} is unhealthy, and not used: {node.unhealthy_reason}")
        elif node.unhealthy_reason is None and node.node_index in self._unhealthy:
            self._unhealthy.discard(node.node_index)
            self._publisher.phase(f"{node.host} is healthy again")
