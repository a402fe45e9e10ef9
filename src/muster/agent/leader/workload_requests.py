"""The leader's part in control requests: publish them, and let the state machine react.

A request is recorded in the status, from which the next leader reads it, before its program learns of it. A ban on
restarts is also a file, for the job script, which may outlive every leader.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from muster.agent.control.messages import ControlRecorded, ControlRequest
from muster.agent.leader.context import LeaderContext
from muster.exit_codes import NODE_EXCLUDED, RESTART_FORBIDDEN, RESTART_REQUESTED
from muster.lifecycle.config import TermStart
from muster.lifecycle.control import ControlKind
from muster.lifecycle.events import Event, ExclusionRequested, RestartForbidden, RestartRequested
from muster.rundir import AttemptPaths, read_record, write_json

logger = logging.getLogger(__name__)

EXIT_CODE_REQUESTS = {
    RESTART_REQUESTED: ControlKind.REQUEST_RESTART,
    RESTART_FORBIDDEN: ControlKind.NO_RESTART,
    NODE_EXCLUDED: ControlKind.EXCLUDE_NODE,
}
MAX_RESTARTS_SHOWN = 20  # of all requests for a restart; the status must not grow with the number of cycles


def exit_code_request(code: int, how: str, cycle: int) -> ControlRequest | None:
    """Return the request that a program makes by its exit code; None if the code is no request."""
    kind = EXIT_CODE_REQUESTS.get(code)
    return None if kind is None else ControlRequest(f"exit-{cycle}", kind, how, True, None, cycle)


def inherit_requests(attempt: AttemptPaths, start: TermStart) -> TermStart:
    """Return the start of a term with the requests that the former leader has recorded. Reads files."""
    terms = [term for term in attempt.terms() if term < start.term]
    requests = read_record(attempt.status(terms[-1])).get("requests", []) if terms else []
    excluded = {entry["rank"] for entry in requests if entry["kind"] == ControlKind.EXCLUDE_NODE.value}
    no_restart = read_record(attempt.no_restart).get("reason")
    return replace(start, leaving=frozenset(excluded) - start.excluded, no_restart=no_restart)


class WorkloadRequests:
    """Records each request once: a node is excluded once, and restarts are forbidden once."""

    def __init__(self, context: LeaderContext, services: Callable[[], dict[str, Any]]) -> None:
        """`services` returns their part of the status."""
        self._context, self._services = context, services

    def record(self, node_index: int, request: ControlRequest) -> Event | None:
        """Publish a request and return the event for the state machine; None if it comes too late."""
        machine = self._context.machine
        late = request.cycle != machine.cycle and request.kind is not ControlKind.EXCLUDE_NODE
        if late or machine.outcome is not None:
            logger.warning("the request %s of cycle %s comes too late", request.kind.value, request.cycle)
            return None
        self._publish(node_index, request)
        self._context.inbox.spawn(self._acknowledge(node_index, request))
        if request.kind is ControlKind.EXCLUDE_NODE:
            return ExclusionRequested(node_index, request.reason, request.at_once)
        if request.kind is ControlKind.NO_RESTART:
            return RestartForbidden(request.reason, request.cycle)
        return RestartRequested(request.reason, request.cycle)

    def _publish(self, node_index: int, request: ControlRequest) -> None:
        publisher, kind = self._context.publisher, request.kind.value
        entry = {
            "rank": node_index,
            "host": self._context.machine.nodes[node_index].host,
            "kind": kind,
            "reason": request.reason,
            "at_once": request.at_once,
            "process_rank": request.rank,
        }
        node = None if request.kind is ControlKind.NO_RESTART else node_index
        known = [one for one in publisher.requests if one["kind"] == kind and node in (None, one["rank"])]
        if known and request.kind is not ControlKind.REQUEST_RESTART and known[-1]["at_once"] >= request.at_once:
            return
        restarts = [one for one in publisher.requests if one["kind"] == ControlKind.REQUEST_RESTART.value]
        if len(restarts) >= MAX_RESTARTS_SHOWN and request.kind is ControlKind.REQUEST_RESTART:
            publisher.requests.remove(restarts[0])
        publisher.control_requested({"time": time.time(), "cycle": request.cycle, **entry})

    async def _acknowledge(self, node_index: int, request: ControlRequest) -> None:
        """Write the record, then let the node release the program that made the request."""
        context = self._context
        try:
            if request.kind is ControlKind.NO_RESTART:
                reason = context.publisher.redacted({"reason": request.reason})
                await context.files.run(write_json, context.identity.attempt.no_restart, reason)
            await context.files.run(context.publisher.write, context.publisher.batch(self._services))
        except OSError as error:
            logger.warning("a control request could not be recorded: %s", error)
            return
        context.connections.send(node_index, ControlRecorded((request.id,)))
