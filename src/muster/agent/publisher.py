"""The lead's view, published: the status by rename at most a few times a second, one event line per phase change."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import Any

from muster.board import AttemptPaths, append_line, write_json
from muster.rendezvous.protocol import Node, Protocol
from muster.rendezvous.states import RunState

MIN_INTERVAL_S = 0.25
MAX_INTERVAL_S = 10.0  # a status older than a few of these means that its lead is gone

TIMINGS = ("job_start", "lead_ready", "ray_head_ready", "ray_ready", "driver_start", "driver_end", "ended")


class Publisher:
    """Compares the protocol with what it published last, and publishes the difference."""

    def __init__(self, attempt: AttemptPaths, protocol: Protocol, identity: dict[str, Any]) -> None:
        self._attempt = attempt
        self._protocol = protocol
        self._identity = identity  # run, job_id, backend, attempt, cycle
        self._published = 0.0
        self._dirty = True
        self.timings: dict[str, float | None] = dict.fromkeys(TIMINGS)
        self.driver: dict[str, Any] = {"state": "waiting", "exit_code": None}
        self.error: dict[str, Any] | None = None
        self.info: dict[str, Any] = {}

    def mark(self, timing: str, when: float | None = None) -> None:
        self.timings[timing] = time.time() if when is None else when

    def phase(self, text: str) -> None:
        """One line for people, with the seconds since the job's start."""
        since = time.time() - (self.timings["job_start"] or time.time())
        with open(self._attempt.phases_log, "a", encoding="utf-8") as file:
            file.write(f"[muster {since:8.1f} s] {text}\n")

    def event(self, name: str, **fields: Any) -> None:
        """Append one line to the events; the source of every timeline."""
        append_line(self._attempt.events(), {"time": time.time(), "event": name, **self._common(), **fields})

    def update(self, *, now: bool = False) -> None:
        """Write events for what changed, and the status if it is time (or `now`)."""
        changed = self._changes()
        if changed:
            self._dirty = True
            with open(self._attempt.events(), "a", encoding="utf-8") as file:
                file.write("".join(json.dumps({**self._common(), **change}) + "\n" for change in changed))
        age = time.monotonic() - self._published
        if now or age >= MAX_INTERVAL_S or (age >= MIN_INTERVAL_S and self._dirty):
            self._publish()

    def _publish(self) -> None:
        self._published = time.monotonic()
        self._dirty = False
        write_json(self._attempt.status(), self.snapshot())

    def _common(self) -> dict[str, Any]:
        return {"attempt": self._identity["attempt"], "cycle": self._identity["cycle"]}

    def _changes(self) -> list[dict[str, Any]]:
        """The protocol's moves since the last look, as events."""
        moves, self._protocol.moves = self._protocol.moves, []
        return [self._change(move) for move in moves]

    def _change(self, move: Node | RunState) -> dict[str, Any]:
        if isinstance(move, Node):
            fields = {"event": "node", "rank": move.rank, "host": move.host, "state": move.state.value}
        else:
            self.phase(f"{move.value}: {len(self._protocol.nodes)} nodes")
            fields = {"event": "run", "state": move.value}
        return {"time": time.time(), **fields}

    def snapshot(self) -> dict[str, Any]:
        """The status as it is published; the documented keys of `muster status --json`."""
        outcome = self._protocol.outcome
        return {
            **self._identity,
            "state": self._protocol.state.value,
            "end_reason": outcome.end_reason if outcome else None,
            "nodes": [
                {"rank": n.rank, "host": n.host, "role": n.role, "state": n.state.value} for n in self._protocol.nodes
            ],
            "driver": self.driver,
            "timings": self.timings,
            "error": self.error,
            "outcome": asdict(outcome) if outcome else None,
            **self.info,
            "updated": time.time(),
            "lead_pid": os.getpid(),
        }
