"""Which live run is meant, and whether it can be used now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.rundir import AttemptPaths, RunPaths
from muster.runs.index import NoSuchRun, all_runs, find_run
from muster.runs.monitor import finalize_dead
from muster.runs.status import ENDED_STATES, read_status
from muster.runs.stop import is_live


class NoLiveRun(NoSuchRun):
    """None was named, and none is live."""


class NotRunning(Exception):
    """The run is there, but nothing can be run on it now."""


def live_run(
    name: str | None, runs_dir: Path | None = None, which: Callable[[RunPaths], bool] = lambda run: True
) -> RunPaths:
    """The run of this name; the only live one (of those that are `which`) when none is named. It is not guessed."""
    if name is not None:
        return find_run(name, runs_dir)
    live = [run for run in all_runs(runs_dir) if which(run) and is_live(run)]
    if not live:
        raise NoLiveRun("no run is live")
    if len(live) > 1:
        raise NoSuchRun(f"several runs are live; name one of {', '.join(run.run_id for run in live)}")
    return live[0]


def running(run: RunPaths) -> tuple[AttemptPaths, dict[str, Any]]:
    """The attempt that runs now, and its status; refused in words when the run cannot be used."""
    finalize_dead(run)
    status, attempt = read_status(run), run.newest_attempt()
    state = status["state"]
    if state == "running" and attempt is not None:
        return attempt, status
    if state in ENDED_STATES:
        raise NotRunning(f"{run.run_id} has ended ({state}: {status['end_reason']})")
    if state == "finishing":
        raise NotRunning(f"{run.run_id} is ending")
    job = f" as Slurm job {status['job_id']}" if status["job_id"] else ""
    how = "is pending" if state == "pending" else f"is still {state}"
    raise NotRunning(f"{run.run_id} {how}{job}; `muster status --watch {run.run_id}` shows when it runs")
