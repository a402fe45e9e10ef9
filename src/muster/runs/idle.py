"""Idle clusters (`muster up`): their driver, recognizing them, and bringing them down."""

from __future__ import annotations

import asyncio
import os

from muster.rundir import RunPaths, read_record, write_json
from muster.runs.follow import RunResult
from muster.runs.lookup import NotRunning, running_attempt
from muster.runs.stop import stop_run, stop_timeout, wait

_ENTRY = "idle"


def idle_command(python: str, run: RunPaths) -> list[str]:
    """Return the driver of an idle cluster: a part of the agent, run by the job's interpreter, which has Ray."""
    return [python, run.agent, _ENTRY, run.root]


def is_idle_cluster(run: RunPaths) -> bool:
    command = read_record(run.job).get("command") or []
    return len(command) == 4 and os.path.basename(command[1]) == os.path.basename(run.agent) and command[2] == _ENTRY


def shown_end(run: RunPaths, state: str, reason: str) -> str:
    """Return the reason of the end for people: a user of an idle cluster has not started a driver."""
    return "the cluster was shut down" if state == "succeeded" and is_idle_cluster(run) else reason


def bring_down(run: RunPaths, reason: str) -> RunResult:
    """End an idle cluster and wait. One that is up ends with success; one that is still starting is stopped."""
    try:
        attempt, _ = running_attempt(run)
    except NotRunning:
        return stop_run(run, reason)
    write_json(attempt.down_request, {"reason": reason})
    return asyncio.run(wait(run, stop_timeout(run))) or stop_run(run, reason)
