"""Write the metrics of a live run to a file in its directory; every process that follows the run refreshes it."""

from __future__ import annotations

import contextlib
import os
import time

from muster.rundir import RunPaths, write_atomic
from muster.views.metrics import metrics
from muster.views.record import RunReader, RunRecord
from muster.views.report import PUBLISH_LOCK, ensure_report

REFRESH_S = 10.0  # minimum interval between writes, also where several processes follow one run


class MetricsFile:
    """`metrics.prom` of a live run; after its end, `ensure_report` writes the file."""

    def __init__(self, run: RunPaths) -> None:
        self._run, self._checked_at = run, -REFRESH_S
        self._reader: RunReader | None = None

    def refresh(self, record: RunRecord | None = None) -> bool:
        """Rewrite the file if it is old, from `record` or from the run directory; return whether it was written.

        It raises nothing: another user's run or a full disk must not fail the caller.
        """
        if time.monotonic() - self._checked_at < REFRESH_S:
            return False
        self._checked_at = time.monotonic()
        with contextlib.suppress(Exception), PUBLISH_LOCK:
            return self._write(record)
        return False

    def _write(self, record: RunRecord | None) -> bool:
        if self._is_fresh() or self._has_ended():
            return False
        if record is None:
            self._reader = self._reader or RunReader(self._run)
            record = self._reader.read()
        if not record.live:
            return False
        write_atomic(self._run.metrics, metrics(record))
        if self._has_ended():  # this write may have replaced the final metrics of another process
            ensure_report(self._run, rewrite=True)
        return True

    def _is_fresh(self) -> bool:
        try:
            return 0 <= time.time() - os.stat(self._run.metrics).st_mtime < REFRESH_S
        except OSError:
            return False

    def _has_ended(self) -> bool:
        attempt = self._run.newest_attempt()
        return attempt is not None and os.path.exists(attempt.outcome)
