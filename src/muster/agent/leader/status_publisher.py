"""The leader's view, published: the status by rename at most a few times a second, one event line per phase change."""

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
from muster.agent.leader.node_entry import node_entry
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.state_machine import RunNode, RunStateMachine
from muster.rundir import LineFile, create_exclusive, read_record, write_atomic
from muster.rundir.redaction import redact_words, scrubbed
from muster.rundir.status_fields import STATUS_REFRESH_S, TIMINGS

logger = logging.getLogger(__name__)


OUR_NAMES = ("host", "phase", "state", "members", "spares", "role", "domain")  # compared by readers: never touched


class StatusPublisher:
    """Notes what happens at once, and writes it in batches: a thousand nodes that arrive together are one write."""

    def __init__(
        self, identity: Identity, protocol: RunStateMachine, secrets: Sequence[str] = (), term: int = 0
    ) -> None:
        """`secrets` are values that are hidden wherever they turn up in what is published."""
        self._attempt, self._status = identity.attempt, identity.attempt.status(term)
        self.term = term
        self._appended = [LineFile(identity.attempt.events(term)), LineFile(identity.attempt.phases_log)]
        self._protocol = protocol
        self._identity = {
            "run": identity.run.run_id,
            "job_id": None if identity.local else slurm_job_id(os.environ),
            "backend": os.environ.get("MUSTER_BACKEND", "slurm"),
            "attempt": identity.attempt.number,
        }
        self._cycles = CycleHistory(protocol, self._before("cycles", []))
        self._secrets = secrets
        self._events: list[dict[str, Any]] = []
        self._phases: list[str] = []
        self._published = 0.0
        self.timings: dict[str, float | None] = {**dict.fromkeys(TIMINGS), **self._before("timings", {})}
        self.driver: dict[str, Any] = {"state": "waiting", "exit_code": None}
        self.error: dict[str, Any] | None = None
        self.ray: dict[str, Any] | None = None  # address, dashboard, settings in force
        self.guests: list[dict[str, Any]] = self._before("guests", [])
        self.services: Callable[[], dict[str, Any]] = dict

    def _before(self, name: str, nothing: Any) -> Any:
        """What the leader before this one published last."""
        terms = [term for term in self._attempt.terms() if term < self.term]
        return read_record(self._attempt.status(terms[-1])).get(name, nothing) if terms else nothing

    def cycle_begins(self) -> None:
        """Another one: nothing of the cluster before is there any more."""
        self.driver, self.ray = {"state": "waiting", "exit_code": None}, None
        self.phase(f"cycle {self._protocol.cycle} begins: {self._protocol.restart_reason}")

    def head_is_there(self, ray: dict[str, Any], dashboard_line: str | None) -> None:
        self.ray = ray
        if dashboard_line is not None:
            self.phase(dashboard_line)
            self.event("dashboard", **ray["dashboard"])

    def driver_begins(self, command: Sequence[str], log_start: int) -> None:
        """`log_start` is where in the driver's log this cycle's output begins."""
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
        """The first error stands: node, phase, reason, last lines."""
        if self.error is None:
            self.phase(f"{node.host} failed in phase {phase}: {reason}")
            self.error = {"rank": node.rank, "host": node.host, "phase": phase, "reason": reason, "log_tail": tail}
            self.event("failure", **self.error)  # the status forgets it where a spare or a new cycle mends it

    def mark(self, timing: str, when: float | None = None) -> None:
        self.timings[timing] = time.time() if when is None else when

    def shown(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields as others may see them: all but names of ours without secrets."""
        return {name: value if name in OUR_NAMES else scrubbed(value, self._secrets) for name, value in fields.items()}

    def phase(self, text: str) -> None:
        """One line for people, with the seconds since the job's start."""
        since = time.time() - (self.timings["job_start"] or time.time())
        self._phases.append(f"[muster {since:8.1f} s] {scrubbed(text, self._secrets)}\n")

    def event(self, name: str, **fields: Any) -> None:
        """One line of the events, the source of every timeline; after the moves that led to it."""
        self.note_moves()
        common = {"attempt": self._identity["attempt"], "term": self.term, "cycle": self._protocol.cycle}
        self._events.append({"time": time.time(), "event": name, **common, **self.shown(fields)})

    def note_moves(self) -> None:
        """Take over the protocol's moves since the last time, with the time of now."""
        self._cycles.look(time.time())
        moves, self._protocol.moves = self._protocol.moves, []
        for move in moves:
            if isinstance(move, RunNode):
                self.event("node", **node_entry(move))
            else:
                cycle = f", cycle {self._protocol.cycle}" if self._protocol.cycle else ""
                self.phase(f"{move.value}: {len(self._protocol.nodes)} nodes{cycle}")
                self.event("run", state=move.value)

    def batch(self) -> dict[str, str]:
        """What there is to write, by file: events and phases to add, and the status if it changed or grew old."""
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
        """Write a batch, and with it what did not fit before. A full or stale filesystem costs the view, not the run.

        Called off the event loop: a filesystem that pauses must not stop the heartbeats.
        """
        with _reported(self._status):
            if self._status in texts:
                write_atomic(self._status, texts[self._status])
        for file in self._appended if texts else ():
            with _reported(file.path):
                if file.path in texts or file.behind:
                    file.append(texts.get(file.path, ""))

    def conclude(self, texts: dict[str, str], outcome: RunOutcome, signalled: bool) -> None:
        """The last batch first: whoever sees the outcome finds the rest complete; the outcome whatever became of it."""
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
            if not create_exclusive(self._attempt.outcome, self.shown(record)):
                logger.warning("the outcome was recorded by another process before; that record is kept")
        except OSError as error:
            logger.error("the outcome could not be written: %s", error)

    def snapshot(self) -> dict[str, Any]:
        """The status as it is published; the documented keys of `muster status --json`."""
        outcome = self._protocol.outcome
        ended = self.shown(asdict(outcome)) if outcome else None
        return {
            **self._identity,
            "cycle": self._protocol.cycle,
            "term": self.term,
            "lead": self._protocol.leader,
            "cycles": [self.shown(entry) for entry in self._cycles.entries],
            "state": self._protocol.state.value,
            "end_reason": ended["end_reason"] if ended else None,
            "nodes": [self.shown(node_entry(node)) for node in self._protocol.nodes],
            "driver": self.driver,
            "ray": self.ray,
            "guests": self.guests,
            "services": self.services(),
            "timings": self.timings,
            "error": self.shown(self.error) if self.error else None,
            "outcome": ended,
            "updated": time.time(),
            "lead_pid": os.getpid(),
        }


@contextlib.contextmanager
def _reported(path: str) -> Iterator[None]:
    """A failed write is only logged."""
    try:
        yield
    except OSError as error:
        logger.warning("%s could not be written: %s", path, error)
