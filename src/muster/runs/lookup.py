"""Find the live run that a command acts on, and check that it is usable."""

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
    """No run was named, and none is live."""


class NotRunning(Exception):
    """The run exists, but is not in the state `running`."""


def live_run(
    name: str | None, runs_dir: Path | None = None, matches: Callable[[RunPaths], bool] = lambda run: True
) -> RunPaths:
    """Return the named run, or without a name the only live one that `matches`. Raises NoSuchRun if it is ambiguous."""
    if name is not None:
        return find_run(name, runs_dir)
    live = [run for run in all_runs(runs_dir) if matches(run) and is_live(run)]
    if not live:
        raise NoLiveRun("no run is live")
    if len(live) > 1:
        raise NoSuchRun(f"several runs are live; name one of {', '.join(run.run_id for run in live)}")
    return live[0]


def running_attempt(run: RunPaths) -> tuple[AttemptPaths, dict[str, Any]]:
    """Return the attempt that runs now, and its status. Raises NotRunning with the reason."""
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
