"""Which runs may go, and their removal. Never a live one, never what is not a run, never through a link.

Whether a run is over is decided for all of them with one squeue: a job of Slurm's that has an outcome may have been
requeued, and one without may have ended without a word.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from muster.errors import BackendError
from muster.rundir import RunPaths, read_record
from muster.runs.index import forget
from muster.runs.monitor import RunMonitor
from muster.runs.next_attempt import slurm_jobs
from muster.runs.usage import DiskUsage, Path, measure, total
from muster.slurm import client

# What stays with results that are kept: enough for `muster runs` and `muster status` to tell what they are of.
_RECORD = re.compile(r"output(/.*)?|job\.json|submission\.json|attempt-\d+(/(outcome|status-\d+\.json))?", re.DOTALL)

Queue = Callable[[str | None], "client.Queue | None"]


@dataclass(frozen=True)
class Doomed:
    """A run that may go: since when nothing came of it, what its removal frees, whether its results stay."""

    run: RunPaths
    last_sign: float
    frees: DiskUsage
    keeps_output: bool


@dataclass(frozen=True)
class Spared:
    """A run that is old enough to go, and stays."""

    run: RunPaths
    reason: str


def plan(runs: Sequence[RunPaths], before: float, keep: int, with_output: bool) -> list[Doomed | Spared]:
    """What becomes of the runs (oldest first) of which nothing came after `before`, but for the newest `keep`."""
    queue = cache(_ask_slurm)  # once for all of a cluster, and only where a run needs it
    decided: list[Doomed | Spared] = []
    for run in dict.fromkeys(runs[: max(0, len(runs) - keep)]):  # links may name one twice
        when = last_sign(run)
        if when >= before:
            continue
        reason = _not_ours(run) or _perhaps_live(run, queue)
        if reason is not None:
            decided.append(Spared(run, reason))
            continue
        keeps = not with_output and has_output(run)
        frees = total(measure(run, lambda path: not stays(path)) if keeps else measure(run))
        if frees.files:
            decided.append(Doomed(run, when, frees, keeps))
    return decided


def stays(path: Path) -> bool:
    """Whether this path of a run stays when its results do."""
    return not path or _RECORD.fullmatch("/".join(path)) is not None


def last_sign(run: RunPaths) -> float:
    """When anything was last written by the run itself; not directories, whose time a removal changes."""
    attempt = run.newest_attempt()
    places = [run.root, *([attempt.root, os.path.dirname(attempt.driver_log)] if attempt else [])]
    return max((when for place in places for when in _written(place)), default=0.0)


def has_output(run: RunPaths) -> bool:
    """Results are whatever is in output/; a link in its place is left alone, too."""
    if os.path.islink(run.output_dir):
        return True
    return os.path.isdir(run.output_dir) and bool(os.listdir(run.output_dir))


def remove(doomed: Doomed) -> None:
    """What makes it a run, and one that is over, goes last: a removal that was interrupted is simply done again."""
    run = doomed.run
    attempts = _attempts(run.root)
    for directory in (*attempts, run.root):
        _empty(directory, run.root, stays)
    if doomed.keeps_output:
        return
    for path in (run.output_dir, *attempts, run.submission, run.job):
        _remove(path)
    _empty(run.root, run.root, lambda path: False)
    os.rmdir(run.root)
    forget(run)


def _empty(directory: str, root: str, stays: Callable[[Path], bool]) -> None:
    for entry in list(os.scandir(directory)):
        if not stays(tuple(os.path.relpath(entry.path, root).split(os.sep))):
            _remove(entry.path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)  # follows no link
    elif os.path.lexists(path):
        os.unlink(path)


def _attempts(root: str) -> list[str]:
    """A link in an attempt's place is none."""
    entries = [entry for entry in os.scandir(root) if entry.name.startswith("attempt-")]
    return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _not_ours(run: RunPaths) -> str | None:
    if os.path.islink(run.root) or not (os.path.isfile(run.job) and _began(run)):
        return "is not a run directory of Muster's"
    if os.lstat(run.root).st_uid != os.geteuid():
        return "belongs to another user"
    return None


def _began(run: RunPaths) -> bool:
    return os.path.isfile(run.submission) or run.newest_attempt() is not None


def _perhaps_live(run: RunPaths, queue: Queue) -> str | None:
    """Why the run may not be over; None when it surely is."""
    submission, attempt = read_record(run.submission), run.newest_attempt()
    over = attempt is not None and os.path.exists(attempt.outcome)
    if submission.get("kind") == "sbatch" or (submission.get("job_id") and not over):
        return _in_queue(run, submission, queue)
    if over:
        return None
    if submission.get("pid") is None:
        return "has left no word of how it was started"
    return None if RunMonitor(run).ended() else f"may still run on {submission.get('host')}"


def _in_queue(run: RunPaths, submission: dict[str, Any], queue: Queue) -> str | None:
    own = slurm_jobs(run)
    jobs = queue(own.cluster)
    if jobs is None:
        return "is Slurm's, which cannot be asked whether it is over"
    waiting = [job for job in own.ids or [str(submission.get("job_id"))] if jobs.has(job, run.script)]
    return f"is in Slurm's queue as job {waiting[0]}" if waiting else None


def _ask_slurm(cluster: str | None) -> client.Queue | None:
    try:
        return client.queue(cluster)
    except BackendError:
        return None


def _written(directory: str) -> list[float]:
    """When the files in this directory were last written."""
    try:
        entries = [entry for entry in os.scandir(directory) if entry.is_file(follow_symlinks=False)]
        return [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    except OSError:
        return []
