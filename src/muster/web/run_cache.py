"""The runs as the web page sees them: read when somebody looks, and again only when something has changed."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster.rundir import RunPaths
from muster.runs.index import all_runs
from muster.runs.tunnels import dashboard_access
from muster.views.listing import entry
from muster.views.metrics_file import MetricsFile
from muster.views.record import RunReader, RunRecord
from muster.views.report import leave_report, model_of

LOOK_S = 0.5
KEEP_ALIVE_S = 5.0  # a browser that has gone is noticed when it is spoken to
MOST_LISTED = 300
MOST_KEPT = 24  # runs whose events are kept in memory
MOST_MODELS = 4  # runs that are over, and what their pages show

Signature = tuple[tuple[str, int, int], ...]


class RunCache:
    """All runs of a directory, or all that are known."""

    def __init__(self, runs_dir: Path | None = None) -> None:
        self._runs_dir = runs_dir
        self._readers: OrderedDict[str, tuple[RunReader, MetricsFile, threading.Lock]] = OrderedDict()
        self._entries: dict[str, tuple[Signature, dict[str, Any]]] = {}
        self._models: OrderedDict[str, tuple[Signature, dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def runs(self) -> list[RunPaths]:
        """The newest first."""
        return all_runs(self._runs_dir)[::-1][:MOST_LISTED]

    def find(self, name: str) -> RunPaths | None:
        """By its whole id, looked up among those that are there: a name is never made into a path."""
        return next((run for run in all_runs(self._runs_dir) if run.run_id == name), None)

    def listing(self) -> list[dict[str, Any]]:
        return [self._entry(run) for run in self.runs()]

    def _entry(self, run: RunPaths) -> dict[str, Any]:
        seen = signature(run)
        known = self._entries.get(run.root)
        if known is None or known[0] != seen or known[1]["live"]:
            known = self._entries[run.root] = (seen, entry(run, time.time()))
        return known[1]

    def record(self, run: RunPaths) -> RunRecord:
        """All that its directory says. One reader serves all who look, one at a time."""
        with self._lock:
            fresh = (RunReader(run), MetricsFile(run), threading.Lock())
            reader, file, lock = self._readers.setdefault(run.root, fresh)
            self._readers.move_to_end(run.root)
            while len(self._readers) > MOST_KEPT:
                self._readers.popitem(last=False)
        with lock:
            record = reader.read()
            file.refresh(record)
            return record

    def model(self, run: RunPaths) -> dict[str, Any]:
        """What its page shows; the end of a run that nobody has followed is seen here first."""
        seen = signature(run)
        known = self._models.get(run.root)
        if known is not None and known[0] == seen:
            return known[1]
        record = self.record(run)
        if record.live:
            return {**model_of(record), "dashboard": dashboard_access(record.status)}
        model = {**model_of(record), "dashboard": None}
        with self._lock:
            self._models[run.root] = (seen, model)
            while len(self._models) > MOST_MODELS:
                self._models.popitem(last=False)
        threading.Thread(target=leave_report, args=(run,), daemon=True).start()  # the page does not wait for it
        return model

    def changes(self, run: RunPaths) -> Iterator[bytes]:
        """Server-sent events: one whenever there is something new, and a word now and then that we are still here."""
        before, said = None, time.monotonic()
        while True:
            now = signature(run)
            if now != before:
                yield b"event: changed\ndata: {}\n\n"
                before, said = now, time.monotonic()
            elif time.monotonic() - said > KEEP_ALIVE_S:
                yield b": still here\n\n"
                said = time.monotonic()
            time.sleep(LOOK_S)


def signature(run: RunPaths) -> Signature:
    """Changes when anything about the run does that a page would show: sizes and times of its small files."""
    attempt, found = run.newest_attempt(), []
    ours = (run.metrics, run.report)  # written by whoever looks
    for place in (run.root, *([attempt.root] if attempt is not None else [])):
        try:
            entries = list(os.scandir(place))
        except OSError:
            continue
        for file in (one for one in entries if not one.path.startswith(ours)):
            try:
                stat = file.stat(follow_symlinks=False)
            except OSError:
                continue
            found.append((file.path, stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(found))
