"""Cache the data of runs for the web page: read on request, and again only after changes."""

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
from muster.views.report import ensure_report, model_of
from muster.views.timeline import TimelineBuilder

CHANGE_POLL_S = 0.5
KEEP_ALIVE_S = 5.0  # a closed connection is only noticed when something is sent
MAX_LISTED = 300
MAX_READERS = 24  # runs whose events are kept in memory
MAX_MODELS = 4  # ended runs whose page data is kept in memory

Signature = tuple[tuple[str, int, int], ...]


class RunCache:
    """The runs in a directory, or all known runs, with the data of their pages."""

    def __init__(self, runs_dir: Path | None = None) -> None:
        self._runs_dir = runs_dir
        self._readers: OrderedDict[str, _CachedReader] = OrderedDict()
        self._entries: dict[str, tuple[Signature, dict[str, Any]]] = {}
        self._models: OrderedDict[str, tuple[Signature, dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def runs(self) -> list[RunPaths]:
        """Return the runs, newest first."""
        return all_runs(self._runs_dir)[::-1][:MAX_LISTED]

    def find(self, name: str) -> RunPaths | None:
        """Return the run with this id; the name is compared with known runs, never used as a path."""
        return next((run for run in all_runs(self._runs_dir) if run.run_id == name), None)

    def listing(self) -> list[dict[str, Any]]:
        return [self._entry(run) for run in self.runs()]

    def _entry(self, run: RunPaths) -> dict[str, Any]:
        current = signature(run)
        known = self._entries.get(run.root)
        if known is None or known[0] != current or known[1]["live"]:
            known = self._entries[run.root] = (current, entry(run, time.time()))
        return known[1]

    def record(self, run: RunPaths) -> RunRecord:
        """Read a run's record; all requests share one reader per run, one at a time."""
        cached = self._cached_reader(run)
        with cached.lock:
            return cached.read()

    def _cached_reader(self, run: RunPaths) -> _CachedReader:
        with self._lock:
            cached = self._readers.setdefault(run.root, _CachedReader(run))
            self._readers.move_to_end(run.root)
            while len(self._readers) > MAX_READERS:
                self._readers.popitem(last=False)
            return cached

    def model(self, run: RunPaths) -> dict[str, Any]:
        """Return the data of a run's page; for an ended run, also write its report if it is missing."""
        current = signature(run)
        known = self._models.get(run.root)
        if known is not None and known[0] == current:
            return known[1]
        cached = self._cached_reader(run)
        with cached.lock:
            record = cached.read()
            timeline = cached.builder.build(record)
        if record.live:
            return {**model_of(record, timeline), "dashboard": dashboard_access(record.status)}
        model = {**model_of(record, timeline), "dashboard": None}
        with self._lock:
            self._models[run.root] = (current, model)
            while len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
        threading.Thread(target=ensure_report, args=(run,), daemon=True).start()  # the page must not wait for it
        return model

    def changes(self, run: RunPaths) -> Iterator[bytes]:
        """Yield server-sent events: one at every change, and keep-alive comments."""
        before, sent_at = None, time.monotonic()
        while True:
            now = signature(run)
            if now != before:
                yield b"event: changed\ndata: {}\n\n"
                before, sent_at = now, time.monotonic()
            elif time.monotonic() - sent_at > KEEP_ALIVE_S:
                yield b": still here\n\n"
                sent_at = time.monotonic()
            time.sleep(CHANGE_POLL_S)


class _CachedReader:
    """The reader of one run and what it has read; the lock is held while one of them is used."""

    def __init__(self, run: RunPaths) -> None:
        self._reader, self._metrics = RunReader(run), MetricsFile(run)
        self.builder, self.lock = TimelineBuilder(), threading.Lock()

    def read(self) -> RunRecord:
        record = self._reader.read()
        self._metrics.refresh(record)
        return record


def signature(run: RunPaths) -> Signature:
    """Return sizes and times of the run's small files, which change with everything that a page shows."""
    attempt, found = run.newest_attempt(), []
    ignored = (run.metrics, run.report)  # written by the viewers themselves
    for place in (run.root, *([attempt.root] if attempt is not None else [])):
        try:
            entries = list(os.scandir(place))
        except OSError:
            continue
        for file in (one for one in entries if not one.path.startswith(ignored)):
            try:
                stat = file.stat(follow_symlinks=False)
            except OSError:
                continue
            found.append((file.path, stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(found))
