"""Select and remove old runs: never a live one, never a directory that is not a run, never through a link.

One squeue decides for all runs whether they have ended: a Slurm job with an outcome may have been requeued, and one
without may have died.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from muster.errors import BackendError
from muster.rundir import RunPaths
from muster.rundir.records import Submission, read_submission
from muster.runs.index import unregister_run
from muster.runs.monitor import RunMonitor
from muster.runs.own_jobs import slurm_jobs
from muster.runs.usage import DiskUsage, Path, measure, total
from muster.slurm import client

# Kept together with the results: enough for `muster runs` and `muster status` to identify the run.
_RECORD = re.compile(r"output(/.*)?|job\.json|submission\.json|attempt-\d+(/(outcome|status-\d+\.json))?", re.DOTALL)

QueryQueue = Callable[[str | None], "client.Queue | None"]


@dataclass(frozen=True)
class RemovableRun:
    """A run that may be removed: time of its last write, space that this frees, whether its results stay."""

    run: RunPaths
    last_activity: float
    frees: DiskUsage
    keeps_output: bool


@dataclass(frozen=True)
class KeptRun:
    """A run that is old enough to be removed, but stays."""

    run: RunPaths
    reason: str


def plan_removals(
    runs: Sequence[RunPaths], before: float, keep: int, with_output: bool
) -> list[RemovableRun | KeptRun]:
    """Decide about the runs (oldest first) without a write since `before`, except the newest `keep`."""
    queue = cache(_query_queue)  # one query per cluster, and only if a run needs it
    decided: list[RemovableRun | KeptRun] = []
    for run in dict.fromkeys(runs[: max(0, len(runs) - keep)]):  # links may lead to one twice
        when = last_activity(run)
        if when >= before:
            continue
        reason = _not_ours(run) or _may_be_live(run, queue)
        if reason is not None:
            decided.append(KeptRun(run, reason))
            continue
        keeps = not with_output and has_output(run)
        frees = total(measure(run, lambda path: not is_kept(path)) if keeps else measure(run))
        if frees.files:
            decided.append(RemovableRun(run, when, frees, keeps))
    return decided


def is_kept(path: Path) -> bool:
    """Whether this path of a run is kept together with its results."""
    return not path or _RECORD.fullmatch("/".join(path)) is not None


def last_activity(run: RunPaths) -> float:
    """Return when the run last wrote a file. Directories do not count: a removal changes their time."""
    attempt = run.newest_attempt()
    places = [run.root, *([attempt.root, os.path.dirname(attempt.driver_log)] if attempt else [])]
    return max((when for place in places for when in _written(place)), default=0.0)


def has_output(run: RunPaths) -> bool:
    """Whether the run has results: anything in output/, or a link in its place."""
    if os.path.islink(run.output_dir):
        return True
    return os.path.isdir(run.output_dir) and bool(os.listdir(run.output_dir))


def remove(removable: RemovableRun) -> None:
    """Remove a run. The files that identify it as a finished run go last, so an interrupted removal can be repeated."""
    run = removable.run
    attempts = _attempts(run.root)
    for directory in (*attempts, run.root):
        _empty(directory, run.root, is_kept)
    if removable.keeps_output:
        return
    for path in (run.output_dir, *attempts, run.submission, run.job):
        _remove(path)
    _empty(run.root, run.root, lambda path: False)
    os.rmdir(run.root)
    unregister_run(run)


def _empty(directory: str, root: str, kept: Callable[[Path], bool]) -> None:
    for entry in list(os.scandir(directory)):
        if not kept(tuple(os.path.relpath(entry.path, root).split(os.sep))):
            _remove(entry.path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)  # follows no link
    elif os.path.lexists(path):
        os.unlink(path)


def _attempts(root: str) -> list[str]:
    """Return the attempt directories; links are ignored."""
    entries = [entry for entry in os.scandir(root) if entry.name.startswith("attempt-")]
    return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _not_ours(run: RunPaths) -> str | None:
    if os.path.islink(run.root) or not (os.path.isfile(run.job) and _began(run)):
        return "is not a Muster run directory"
    if os.lstat(run.root).st_uid != os.geteuid():
        return "belongs to another user"
    return None


def _began(run: RunPaths) -> bool:
    return os.path.isfile(run.submission) or run.newest_attempt() is not None


def _may_be_live(run: RunPaths, queue: QueryQueue) -> str | None:
    """Return why the run may still be live; None if it has certainly ended."""
    submission, attempt = read_submission(run), run.newest_attempt()
    ended = attempt is not None and os.path.exists(attempt.outcome)
    if submission.is_batch or (submission.job_id and not ended):
        return _in_queue(run, submission, queue)
    if ended:
        return None
    if submission.pid is None:
        return "has no record of how it was started"
    return None if RunMonitor(run).query_dead() else f"may still run on {submission.host}"


def _in_queue(run: RunPaths, submission: Submission, queue: QueryQueue) -> str | None:
    own = slurm_jobs(run)
    jobs = queue(own.cluster)
    if jobs is None:
        return "is a Slurm job, and Slurm does not answer whether it has ended"
    waiting = [job for job in own.ids or [str(submission.job_id)] if jobs.has(job, run.script)]
    return f"is in Slurm's queue as job {waiting[0]}" if waiting else None


def _query_queue(cluster: str | None) -> client.Queue | None:
    try:
        return client.queue(cluster)
    except BackendError:
        return None


def _written(directory: str) -> list[float]:
    """Return the modification times of the files in a directory."""
    try:
        entries = [entry for entry in os.scandir(directory) if entry.is_file(follow_symlinks=False)]
        return [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    except OSError:
        return []
