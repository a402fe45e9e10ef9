"""Publishes the run's state: the status (by rename, a few times a second at most), events and phase lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from muster.agent.job import Identity, slurm_job_id
from muster.agent.leader.cycle_history import CycleHistory
from muster.agent.leader.files import Files
from muster.agent.leader.inbox import Inbox
from muster.agent.run_directory import RETRY_INTERVAL_S, SERVER_ERRORS
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.state_machine import RunNode, RunStateMachine
from muster.lifecycle.states import RunState
from muster.lifecycle.transition import Change
from muster.process.log_reader import log_end
from muster.rundir import LineFile, create_exclusive, read_record, write_atomic
from muster.rundir.records import STATUS_REFRESH_S, TIMINGS
from muster.rundir.redaction import redact_words, scrubbed

logger = logging.getLogger(__name__)


OUTCOME_TIMEOUT_S = 60.0  # for a filesystem that has lost its server; a full one does not keep the nodes allocated
STATUS_COST_FACTOR = 20  # a status that takes 0.1 s to build is built every 2 s at most: one core works 5% for it

UNREDACTED = ("host", "phase", "state", "members", "spares", "role", "domain")  # readers compare these


@dataclass(frozen=True)
class PublishedError:
    """An error as the status shows it, and the time and the cycle of its event."""

    record: dict[str, Any]
    time: float
    cycle: int


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
        self._previous_status: dict[str, Any] = self._read_previous()
        counts = [self._previous(name, 0) for name in ("cycles_dropped", "cycles_dropped_without_progress")]
        self._cycles = CycleHistory(machine, self._previous("cycles", []), *counts)
        self._cycle_texts: dict[int, str] = {}  # JSON of ended cycles, by number
        self._node_texts: list[tuple[RunNode, str]] = []  # JSON of each node
        self._secrets = secrets
        self._events: list[dict[str, Any]] = []
        self._phases: list[str] = []
        self._published = 0.0
        self._changed = True  # since the status was published
        self._due = 0.0  # when the next status may be built
        self._ended = False
        self._outcome: RunOutcome | None = None  # as published at the end
        self.timings: dict[str, float | None] = {**dict.fromkeys(TIMINGS), **self._previous("timings", {})}
        self.driver: dict[str, Any] = {"state": "waiting", "exit_code": None}
        self.error: dict[str, Any] | None = None
        self.ray: dict[str, Any] | None = None  # address, dashboard, settings in force
        self.guests: list[dict[str, Any]] = self._previous("guests", [])
        self.requests: list[dict[str, Any]] = self._previous("requests", [])  # of the run's programs
        self._previous_status = {}

    def _read_previous(self) -> dict[str, Any]:
        terms = [term for term in self._attempt.terms() if term < self.term]
        return read_record(self._attempt.status(terms[-1])) if terms else {}

    def _previous(self, name: str, default: Any) -> Any:
        """Return a value of the previous leader's last status."""
        return self._previous_status.get(name, default)

    def cycle_begins(self, cycle: int, reason: str) -> None:
        """Reset what belongs to the previous cycle's cluster."""
        self.driver, self.ray = {"state": "waiting", "exit_code": None}, None
        self.phase(f"cycle {cycle} begins: {reason}")

    def head_ready(self, ray: dict[str, Any], dashboard_line: str | None) -> None:
        self.ray = ray
        if dashboard_line is not None:
            self.phase(dashboard_line)
            self.event("dashboard", **ray["dashboard"])

    def gcs_restarted(self, node: RunNode, restarts: int, reason: str, seconds: float) -> None:
        """`seconds`: from the end of Ray's control service to its answer."""
        if self.ray is not None:
            self.ray = {**self.ray, "gcs_restarts": restarts}
        self.phase(f"{node.host}: {reason}; it was restarted with its state and answers after {seconds:.1f} s")
        rounded = round(seconds, 3)
        self.event(
            "gcs_restart", rank=node.node_index, host=node.host, reason=reason, seconds=rounded, restarts=restarts
        )

    def control_requested(self, entry: dict[str, Any]) -> None:
        """Publish what a program has requested."""
        self.requests.append(entry)
        where = entry["host"] if entry["process_rank"] is None else f"rank {entry['process_rank']} on {entry['host']}"
        self.phase(f"{where} requests {entry['kind']}: {entry['reason']}")
        self.event("control", **{name: value for name, value in entry.items() if name not in ("time", "cycle")})
        self._published = 0.0  # the status shows it at once

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
        self._ended, self._outcome = True, outcome
        self.mark("ended")
        self.phase(f"exit code {outcome.exit_code}: {outcome.end_reason}")
        self.event("end", state=outcome.state, exit_code=outcome.exit_code, reason=outcome.end_reason)

    def note_error(self, node: RunNode, phase: str, reason: str) -> PublishedError | None:
        """Keep the first error: node, phase and reason. Return it, to be explained; None if it is not the first."""
        if self.error is not None:
            return None
        self.phase(f"{node.host} failed in phase {phase}: {reason}")
        self.error = {"rank": node.node_index, "host": node.host, "phase": phase, "reason": reason, "log_tail": []}
        self._published = 0.0  # the status shows it at once
        return PublishedError(self.error, time.time(), self._machine.cycle)

    def explain_error(self, error: PublishedError, tail: Sequence[str]) -> None:
        """Add the last log lines to an error, and its event: the status drops it if the run continues."""
        error.record["log_tail"] = list(tail)
        self.event("failure", **error.record)
        self._events[-1].update(time=error.time, cycle=error.cycle)

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
        """Add an event. Timelines are made from events."""
        common = {"attempt": self._identity["attempt"], "term": self.term, "cycle": self._machine.cycle}
        self._events.append({"time": time.time(), "event": name, **common, **self.redacted(fields)})

    def record_changes(self, changes: Sequence[Change]) -> None:
        """Add events for the changes of a transition, with the current time. Call this after every transition."""
        self._cycles.update(time.time(), changes)
        for change in changes:
            if isinstance(change, RunNode):
                self.event("node", **node_entry(change))
            else:
                self._record_state(change)

    def _record_state(self, state: RunState) -> None:
        machine = self._machine
        cycle = f", cycle {machine.cycle}" if machine.cycle else ""
        count, size = len(machine.nodes), machine.round.size
        is_short = state is RunState.STARTING and size < machine.config.active_nodes
        self.phase(f"{state.value}: {f'{size} of ' if is_short else ''}{count} node{'s' if count != 1 else ''}{cycle}")
        more: dict[str, Any] = {}
        if state is RunState.STARTING and machine.config.min_nodes is not None:
            more = {"nodes": size}
        elif state is RunState.RESTARTING:
            more = {"reason": machine.restart_reason}
        self.event("run", state=state.value, **more)

    def batch(self, services: Callable[[], dict[str, Any]] = dict) -> dict[str, str]:
        """Return the text to write by file: new events and phases, and the status if it changed or needs a refresh.

        A status of thousands of nodes is not built with each batch, except the last one. `services` returns its part
        about services.
        """
        texts: dict[str, str] = {}
        now, self._changed = time.monotonic(), self._changed or bool(self._events)
        if (self._changed and (now >= self._due or self._ended)) or now - self._published >= STATUS_REFRESH_S:
            texts[self._status] = self._status_text(services()) + "\n"
            self._published, self._changed = now, False
            self._due = now + STATUS_COST_FACTOR * (time.monotonic() - now)
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
        record: dict[str, Any] = {
            "exit_code": outcome.exit_code,
            "state": outcome.state,
            "end_reason": outcome.end_reason,
            "signalled": signalled,
            "lost": outcome.lost,
        }
        self.write(texts)
        for name, path in (
            ("driver_bytes", self._attempt.driver_log),
            ("events_bytes", self._attempt.events(self.term)),
        ):
            end = log_end(path)
            if end is not None:  # readers wait for so much: their caches may hide the last part
                record[name] = end[0]
        with contextlib.suppress(OSError):
            os.unlink(self._attempt.reserve)
        deadline = time.monotonic() + OUTCOME_TIMEOUT_S
        while True:
            try:
                if not create_exclusive(self._attempt.outcome, self.redacted(record)):
                    logger.warning("the outcome was recorded by another process before; that record is kept")
                return
            except OSError as error:
                if error.errno not in SERVER_ERRORS or time.monotonic() >= deadline:
                    logger.error("the outcome could not be written: %s", error)
                    return
                time.sleep(RETRY_INTERVAL_S)

    def snapshot(self, services: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the status as published; its keys are those documented for `muster status --json`."""
        cycles = [self.redacted(entry) for entry in self._cycles.entries]
        nodes = [self.redacted(node_entry(node)) for node in self._machine.nodes]
        return {**self._summary(services or {}), "cycles": cycles, "nodes": nodes}

    def _summary(self, services: Mapping[str, Any]) -> dict[str, Any]:
        """Return the status without its lists of cycles and nodes."""
        outcome = self._outcome or self._machine.outcome
        ended = self.redacted(_outcome_record(outcome)) if outcome else None
        return {
            **self._identity,
            "cycle": self._machine.cycle,
            "term": self.term,
            "lead": self._machine.leader,
            "cycles_dropped": self._cycles.dropped,
            "cycles_dropped_without_progress": self._cycles.dropped_without_progress,
            "state": self._machine.state.value,
            "end_reason": ended["end_reason"] if ended else None,
            "driver": self.driver,
            "ray": self.ray,
            "guests": self.guests,
            "requests": [self.redacted(entry) for entry in self.requests],
            "services": services,
            "timings": self.timings,
            "error": self.redacted(self.error) if self.error else None,
            "outcome": ended,
            "updated": time.time(),
            "lead_pid": os.getpid(),
        }

    def _status_text(self, services: Mapping[str, Any]) -> str:
        """Return the JSON of `snapshot`; only nodes and cycles that have changed are encoded again."""
        summary = json.dumps(self._summary(services))
        cycles, nodes = ", ".join(self._encoded_cycles()), ", ".join(self._encoded_nodes())
        return f'{summary[:-1]}, "cycles": [{cycles}], "nodes": [{nodes}]}}'

    def _encoded_cycles(self) -> list[str]:
        entries, kept = self._cycles.entries, self._cycle_texts
        self._cycle_texts = {}
        for entry in entries[:-1]:  # these have ended
            number = entry["cycle"]
            self._cycle_texts[number] = kept.get(number) or json.dumps(self.redacted(entry))
        return [*self._cycle_texts.values(), *(json.dumps(self.redacted(entry)) for entry in entries[-1:])]

    def _encoded_nodes(self) -> list[str]:
        nodes, texts = self._machine.nodes, self._node_texts
        if len(texts) != len(nodes):
            texts[:] = [(node, self._encode_node(node)) for node in nodes]
        for node_index, node in enumerate(nodes):
            if texts[node_index][0] is not node:  # a changed node is a new value
                texts[node_index] = node, self._encode_node(node)
        return [text for _, text in texts]

    def _encode_node(self, node: RunNode) -> str:
        return json.dumps(self.redacted(node_entry(node)))


def node_entry(node: RunNode) -> dict[str, Any]:
    """Return a node as the status and the events show it.

    `rank` is its number in the allocation, `logical_rank` the one in the current cycle.
    """
    entry = {"rank": node.node_index, "host": node.host, "role": node.role.value, "logical_rank": node.rank}
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


def _outcome_record(outcome: RunOutcome) -> dict[str, Any]:
    """Return an outcome as published, with the node index as `rank`."""
    record = asdict(outcome)
    record["rank"] = record.pop("node_index")
    return record


class RunError:
    """The run's error: published at once, and again with the last lines of the log that explains it.

    The first one is kept unless the run continues after it. Logs are read after the event, so none is delayed.
    """

    def __init__(self, publisher: StatusPublisher, files: Files, inbox: Inbox) -> None:
        self._publisher, self._files, self._inbox = publisher, files, inbox
        self._reading: set[asyncio.Future[Any]] = set()

    def note(self, node: RunNode, phase: str, reason: str, log: str | None, tail: Sequence[str] = ()) -> None:
        """Publish an error unless there is one. Its last lines are those of `log`, or `tail` without a log."""
        error = self._publisher.note_error(node, phase, reason)
        if error is not None and log is None:
            self._publisher.explain_error(error, tail)
        elif error is not None and log is not None:
            reading = self._inbox.spawn(self._explain(error, log))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)

    def drop(self) -> None:
        """Remove the error from the status: the run continues, or has succeeded. The event stays."""
        self._publisher.error = None

    async def settle(self) -> None:
        """Wait until every error is published with its last lines. A log that cannot be read takes half a second."""
        if self._reading:
            await asyncio.wait(self._reading)

    async def _explain(self, error: PublishedError, log: str) -> None:
        self._publisher.explain_error(error, await self._files.tail(log))
