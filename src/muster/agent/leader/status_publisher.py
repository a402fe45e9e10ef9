"""Publishes the run's state: the status (by rename, a few times a second at most), events and phase lines."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from muster.agent.job import Identity, slurm_job_id
from muster.agent.leader.cycle_history import CycleHistory
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.state_machine import RunNode, RunStateMachine
from muster.rundir import LineFile, create_exclusive, read_record, write_atomic
from muster.rundir.redaction import redact_words, scrubbed
from muster.rundir.status_fields import STATUS_REFRESH_S, TIMINGS

logger = logging.getLogger(__name__)


UNREDACTED = ("host", "phase", "state", "members", "spares", "role", "domain")  # readers compare these


class StatusPublisher:
    """Collects events at once and writes them in batches: a thousand nodes that arrive together are one write."""

    def __init__(
        self, identity: Identity, machine: RunStateMachine, secrets: Sequence[str] = (), term: int = 0
    ) -> None:
        """`secrets`: values that are redacted in everything published."""
        self._attempt, self._status = identity.attempt, identity.attempt.status(term)
        self.term = term
        self._line_files = [LineFile(identity.attempt.events(term)), LineFile(identity.attempt.phases_log)]
        self._machine = machine
        self._identity = {
            "run": identity.run.run_id,
            "job_id": None if identity.local else slurm_job_id(os.environ),
            "backend": os.environ.get("MUSTER_BACKEND", "slurm"),
            "attempt": identity.attempt.number,
        }
        self._cycles = CycleHistory(machine, self._previous("cycles", []))
        self._secrets = secrets
        self._events: list[dict[str, Any]] = []
        self._phases: list[str] = []
        self._published = 0.0
        self.timings: dict[str, float | None] = {**dict.fromkeys(TIMINGS), **self._previous("timings", {})}
        self.driver: dict[str, Any] = {"state": "waiting", "exit_code": None}
        self.error: dict[str, Any] | None = None
        self.ray: dict[str, Any] | None = None  # address, dashboard, settings in force
        self.guests: list[dict[str, Any]] = self._previous("guests", [])
        self.services: Callable[[], dict[str, Any]] = dict

    def _previous(self, name: str, default: Any) -> Any:
        """Return a value of the previous leader's last status."""
        terms = [term for term in self._attempt.terms() if term < self.term]
        return read_record(self._attempt.status(terms[-1])).get(name, default) if terms else default

    def cycle_begins(self) -> None:
        """Reset what belongs to the previous cycle's cluster."""
        self.driver, self.ray = {"state": "waiting", "exit_code": None}, None
        self.phase(f"cycle {self._machine.cycle} begins: {self._machine.restart_reason}")

    def head_ready(self, ray: dict[str, Any], dashboard_line: str | None) -> None:
        self.ray = ray
        if dashboard_line is not None:
            self.phase(dashboard_line)
            self.event("dashboard", **ray["dashboard"])

    def driver_begins(self, command: Sequence[str], log_start: int) -> None:
        """`log_start`: the offset of this cycle's output in the driver's log."""
        self.mark("driver_start")
        self.driver = {"state": "running", "exit_code": None}
        self._cycles.entries[-1]["log_start"] = log_start
        self.event("driver_start", command=redact_words(command))

    def driver_ends(self, code: int) -> None:
        self.mark("driver_end")
        self.driver = {"state": "ended", "exit_code": code}
        self.event("driver_end", exit_code=code)

    def run_ends(self, outcome: RunOutcome) -> None:
        self.mark("ended")
        self.phase(f"exit code {outcome.exit_code}: {outcome.end_reason}")
        self.event("end", state=outcome.state, exit_code=outcome.exit_code, reason=outcome.end_reason)

    def note_error(self, node: RunNode, phase: str, reason: str, tail: list[str]) -> None:
        """Keep the first error: node, phase, reason and last log lines."""
        if self.error is None:
            self.phase(f"{node.host} failed in phase {phase}: {reason}")
            self.error = {"rank": node.rank, "host": node.host, "phase": phase, "reason": reason, "log_tail": tail}
            self.event("failure", **self.error)  # the status drops it if a spare or a new cycle repairs it

    def mark(self, timing: str, when: float | None = None) -> None:
        self.timings[timing] = time.time() if when is None else when

    def redacted(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields without secrets."""
        return {name: value if name in UNREDACTED else scrubbed(value, self._secrets) for name, value in fields.items()}

    def phase(self, text: str) -> None:
        """Add a line for users, with the seconds since the job's start."""
        since = time.time() - (self.timings["job_start"] or time.time())
        self._phases.append(f"[muster {since:8.1f} s] {scrubbed(text, self._secrets)}\n")

    def event(self, name: str, **fields: Any) -> None:
        """Add an event, after the state changes that led to it. Timelines are made from events."""
        self.note_moves()
        common = {"attempt": self._identity["attempt"], "term": self.term, "cycle": self._machine.cycle}
        self._events.append({"time": time.time(), "event": name, **common, **self.redacted(fields)})

    def note_moves(self) -> None:
        """Add events for the state machine's changes since the last call, with the current time."""
        self._cycles.update(time.time())
        changes, self._machine.changes = self._machine.changes, []
        for change in changes:
            if isinstance(change, RunNode):
                self.event("node", **node_entry(change))
            else:
                cycle = f", cycle {self._machine.cycle}" if self._machine.cycle else ""
                self.phase(f"{change.value}: {len(self._machine.nodes)} nodes{cycle}")
                self.event("run", state=change.value)

    def batch(self) -> dict[str, str]:
        """Return the text to write by file: new events and phases, and the status if it changed or needs a refresh."""
        self.note_moves()
        texts: dict[str, str] = {}
        if self._events or time.monotonic() - self._published >= STATUS_REFRESH_S:
            self._published = time.monotonic()
            texts[self._status] = json.dumps(self.snapshot()) + "\n"
        if self._events:
            texts[self._attempt.events(self.term)] = "".join(json.dumps(event) + "\n" for event in self._events)
        if self._phases:
            texts[self._attempt.phases_log] = "".join(self._phases)
        self._events, self._phases = [], []
        return texts

    def write(self, texts: dict[str, str]) -> None:
        """Write a batch, and what could not be written before. Errors are only logged: the run continues.

        Called off the event loop: a filesystem that hangs must not stop the heartbeats.
        """
        with _errors_logged(self._status):
            if self._status in texts:
                write_atomic(self._status, texts[self._status])
        for file in self._line_files if texts else ():
            with _errors_logged(file.path):
                if file.path in texts or file.behind:
                    file.append(texts.get(file.path, ""))

    def conclude(self, texts: dict[str, str], outcome: RunOutcome, signalled: bool) -> None:
        """Write the last batch, then (even if that failed) the outcome: its readers find the rest complete."""
        record = {
            "exit_code": outcome.exit_code,
            "state": outcome.state,
            "end_reason": outcome.end_reason,
            "signalled": signalled,
            "lost": outcome.lost,
        }
        self.write(texts)
        with contextlib.suppress(OSError):
            os.unlink(self._attempt.reserve)
        try:
            if not create_exclusive(self._attempt.outcome, self.redacted(record)):
                logger.warning("the outcome was recorded by another process before; that record is kept")
        except OSError as error:
            logger.error("the outcome could not be written: %s", error)

    def snapshot(self) -> dict[str, Any]:
        """Return the status as published; its keys are those documented for `muster status --json`."""
        outcome = self._machine.outcome
        ended = self.redacted(asdict(outcome)) if outcome else None
        return {
            **self._identity,
            "cycle": self._machine.cycle,
            "term": self.term,
            "lead": self._machine.leader,
            "cycles": [self.redacted(entry) for entry in self._cycles.entries],
            "state": self._machine.state.value,
            "end_reason": ended["end_reason"] if ended else None,
            "nodes": [self.redacted(node_entry(node)) for node in self._machine.nodes],
            "driver": self.driver,
            "ray": self.ray,
            "guests": self.guests,
            "services": self.services(),
            "timings": self.timings,
            "error": self.redacted(self.error) if self.error else None,
            "outcome": ended,
            "updated": time.time(),
            "lead_pid": os.getpid(),
        }


def node_entry(node: RunNode) -> dict[str, Any]:
    """Return a node as the status and the events show it.

    `rank` is its number in the allocation, `logical_rank` the one in the current cycle.
    """
    entry = {"rank": node.rank, "host": node.host, "role": node.role.value, "logical_rank": node.logical}
    entry = {**entry, "state": node.state.value, "healthy": node.unhealthy_reason is None}
    if node.unhealthy_reason is not None:
        entry["ailment"] = node.unhealthy_reason
    if node.location.domain:
        entry["domain"] = node.location.domain
    return entry


@contextlib.contextmanager
def _errors_logged(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logger.warning("%s could not be written: %s", path, error)
