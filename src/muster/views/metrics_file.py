"""The metrics of a live run as a file beside it: refreshed by whoever follows the run, whole at every moment."""

from __future__ import annotations

import contextlib
import os
import time

from muster.rundir import RunPaths, write_atomic
from muster.views.metrics import metrics
from muster.views.record import RunReader, RunRecord
from muster.views.report import ONE_WRITER, leave_report

REFRESH_S = 10.0  # several may follow one run: together they write no more often than this


class MetricsFile:
    """`metrics.prom` of one run, for as long as the run is live; after that it is the report's companion."""

    def __init__(self, run: RunPaths) -> None:
        self._run, self._looked = run, -REFRESH_S
        self._reader: RunReader | None = None

    def refresh(self, seen: RunRecord | None = None) -> bool:
        """Write it anew if it is old, of what was just `seen` or of what there is; returns whether that was done.

        Never a reason for anything to fail: the run may be another's, its disk full.
        """
        if time.monotonic() - self._looked < REFRESH_S:
            return False
        self._looked = time.monotonic()
        with contextlib.suppress(Exception), ONE_WRITER:
            return self._write(seen)
        return False

    def _write(self, seen: RunRecord | None) -> bool:
        if self._is_fresh() or self._is_over():
            return False
        if seen is None:
            self._reader = self._reader or RunReader(self._run)
            seen = self._reader.read()
        if not seen.live:
            return False
        write_atomic(self._run.metrics, metrics(seen))
        if self._is_over():  # meanwhile: another may have written the last ones, which ours have replaced
            leave_report(self._run, anew=True)
        return True

    def _is_fresh(self) -> bool:
        try:
            return 0 <= time.time() - os.stat(self._run.metrics).st_mtime < REFRESH_S
        except OSError:
            return False

    def _is_over(self) -> bool:
        attempt = self._run.newest_attempt()
        return attempt is not None and os.path.exists(attempt.outcome)
