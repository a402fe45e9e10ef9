"""What is remembered of nodes: in an attempt of a run, and in a directory that runs of a user or a site share.

    <memory>/<host>.<run>-<attempt>.json          evidence of one attempt: a list of records
    <memory>/<host>.forgiven.<nanoseconds>.json   evidence until then does not count

Each record is a separate file, so that runs and users need no lock. A site's directory has mode 1777, as /tmp.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from muster.rundir.atomic import read_json, read_record, write_atomic, write_json
from muster.rundir.hosts import host_file_name, host_names
from muster.rundir.node_evidence import HALF_LIFE_S, Evidence, assess, bad_hosts, by_host
from muster.rundir.paths import AttemptPaths, RunPaths

SHARED_FILE_MODE = 0o644  # other users read the records of a site's directory
KEPT_S = 10 * HALF_LIFE_S  # then a weight is a thousandth: the file is removed
FORGIVEN = "forgiven"


# -- one run ----------------------------------------------------------------------------------------------------------


def record_attempt(run: RunPaths, attempt: AttemptPaths, gang: bool) -> list[Evidence]:
    """Write the evidence of an attempt, and which hosts the run's next attempt avoids; return the evidence."""
    found = assess(_events(attempt), host_names(attempt), run.run_id, attempt.number, gang)
    if found:
        write_json(attempt.bad_nodes, [asdict(one) for one in found])
    bad = bad_hosts(run_evidence(run), time.time())
    if bad:
        write_atomic(attempt.avoided_nodes, ",".join(bad) + "\n")
    return found


def run_evidence(run: RunPaths) -> list[Evidence]:
    """Return the evidence of all attempts of a run."""
    return [one for attempt in run.attempts() for one in _read(attempt.bad_nodes)]


def _events(attempt: AttemptPaths) -> list[dict[str, object]]:
    """Return the events of all terms, without damaged lines, in the order of time."""
    events: list[dict[str, object]] = []
    for term in attempt.event_terms():
        with contextlib.suppress(OSError), open(attempt.events(term), encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and isinstance(event.get("time"), (int, float)) and "event" in event:
                        events.append(event)
    return sorted(events, key=lambda event: event["time"])  # type: ignore[arg-type, return-value]


def _read(path: str) -> list[Evidence]:
    records = read_json(path)
    found = map(Evidence.from_record, records if isinstance(records, list) else [])
    return [one for one in found if one is not None]


# -- many runs --------------------------------------------------------------------------------------------------------


class NodeMemory:
    """A directory with evidence of many runs."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.expanduser(directory)

    def remember(self, evidence: Iterable[Evidence]) -> None:
        """Add the evidence of an attempt. Raises OSError."""
        os.makedirs(self.directory, exist_ok=True)
        for host, own in by_host(evidence).items():
            name = f"{host_file_name(host)}.{own[0].run}-{own[0].attempt}.json"
            write_atomic(
                os.path.join(self.directory, name), json.dumps([asdict(one) for one in own]) + "\n", SHARED_FILE_MODE
            )

    def forgive(self, hosts: Sequence[str]) -> None:
        """Let all evidence so far against these hosts not count. Raises OSError."""
        os.makedirs(self.directory, exist_ok=True)
        for host in hosts:
            now = time.time()
            path = os.path.join(self.directory, f"{host_file_name(host)}.{FORGIVEN}.{time.time_ns()}.json")
            write_atomic(path, json.dumps({"host": host, "time": now}) + "\n", SHARED_FILE_MODE)

    def evidence(self) -> list[Evidence]:
        """Return the evidence that counts; remove files that are too old to matter."""
        found: list[Evidence] = []
        forgiven: dict[str, float] = {}
        now = time.time()
        for name in self._names():
            path = os.path.join(self.directory, name)
            with contextlib.suppress(OSError):  # another command has removed it, or it is another user's
                if now - os.stat(path).st_mtime > KEPT_S:
                    os.unlink(path)
                    continue
            if f".{FORGIVEN}." in name:
                record = read_record(path)
                host, when = record.get("host"), record.get("time")
                if isinstance(host, str) and isinstance(when, (int, float)):
                    forgiven[host] = max(forgiven.get(host, 0.0), when)
            else:
                found += _read(path)
        return [one for one in found if one.time > forgiven.get(one.host, 0.0)]

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.directory) if name.endswith(".json"))
        except OSError:
            return []
