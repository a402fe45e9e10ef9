"""Provide the Python API, which uses the same job model and the same runs as the command line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.errors import BackendError, Mistake
from muster.launch.plan import Prepared, array_runs, plan_run, task_job_id
from muster.launch.submit import attached, job_id_here, start_detached, submit_batch, submit_batches
from muster.launch.target import choose_target
from muster.rundir import RunPaths
from muster.runs.follow import Output, RunEvent, RunResult, follow
from muster.runs.status import read_status
from muster.runs.stop import stop_run
from muster.spec import JobSpec, SpecError
from muster.spec import load_job as read_job
from muster.views.metrics_file import MetricsFile
from muster.views.report import ensure_report

__all__ = [
    "BackendError",
    "JobSpec",
    "RunHandle",
    "RunResult",
    "SpecError",
    "load_job",
    "run",
    "submit",
    "submit_array",
]

METRICS_INTERVAL_S = 1.0  # between updates of the metrics file while a run is followed

Observer = Callable[[RunEvent | Output], None]


@dataclass(frozen=True)
class RunHandle:
    """A run that was started and continues independently of this process."""

    run: str
    run_dir: str
    job_id: str | None

    def status(self) -> dict[str, object]:
        """Return the status as in `muster status --json`."""
        return read_status(RunPaths(self.run_dir))

    def wait(self, observe: Observer = lambda item: None) -> RunResult:
        """Follow the run until it ends; call `observe` with each event and piece of output."""
        return _run_to_result(follow_run(RunPaths(self.run_dir), observe))

    def stop(self) -> RunResult:
        """Stop the run and wait until it has ended."""
        return stop_run(RunPaths(self.run_dir), "stopped through the Python API")


def load_job(file: str | Path | None = None, profile: str | None = None, **fields: Any) -> JobSpec:
    """Load a job as `muster run` does: settings of site, user, profile and environment, then `file`, then `fields`.

    `JobSpec(...)` does not read settings. Raises SpecError.
    """
    chosen = {} if profile is None else {"profile": profile}
    return read_job(None if file is None else Path(file), {**chosen, **fields})


def prepare(spec: JobSpec) -> Prepared:
    """Plan the run of this job on this machine; nothing is written or started."""
    return plan_run(spec, choose_target(spec, os.environ), Path.cwd())


def submit(spec: JobSpec) -> RunHandle:
    """Start a run and return at once. Without sbatch, it continues in the background of this machine."""
    if spec.array is not None:
        raise Mistake("a job array has one run per task; use submit_array")
    return submit_prepared(prepare(spec))


def submit_array(spec: JobSpec) -> list[RunHandle]:
    """Submit a job array and return at once, with one run per task, in order."""
    if spec.array is None:
        raise Mistake("this job has no array; use submit")
    return submit_tasks(prepare(spec))


def submit_tasks(prepared: Prepared) -> list[RunHandle]:
    runs = array_runs(prepared)
    job_id = submit_batches(runs)
    return [RunHandle(task.run.run_id, task.run.root, task_job_id(task, job_id)) for task in runs]


def submit_prepared(prepared: Prepared) -> RunHandle:
    if prepared.target.kind == "sbatch":
        job_id: str | None = submit_batch(prepared)
    else:
        start_detached(prepared)
        job_id = job_id_here(prepared)
    return RunHandle(prepared.run.run_id, prepared.run.root, job_id)


def run(spec: JobSpec, observe: Observer = lambda item: None) -> RunResult:
    """Run the job and return its result. A local run, or one inside an allocation, is stopped if this process ends."""
    if spec.array is not None:
        raise Mistake("a job array has one run per task; use submit_array")
    prepared = prepare(spec)
    if not prepared.target.attached:
        return submit_prepared(prepared).wait(observe)
    return _run_to_result(_run_attached(prepared, observe))


async def _run_attached(prepared: Prepared, observe: Observer) -> RunResult:
    async with attached(prepared):
        return await follow_run(prepared.run, observe)


async def follow_run(run: RunPaths, observe: Observer) -> RunResult:
    """Follow a run, call `observe` with each item, and return the result after the report is written."""
    refreshing = asyncio.ensure_future(_refresh_metrics(run))
    try:
        async for item in follow(run):
            if isinstance(item, RunResult):
                await asyncio.get_running_loop().run_in_executor(None, ensure_report, run)
                return item
            observe(item)
    finally:
        refreshing.cancel()
    raise AssertionError("follow() ended without a result")


async def _refresh_metrics(run: RunPaths) -> None:
    """Keep the metrics file of the running run up to date."""
    file = MetricsFile(run)
    while True:
        await asyncio.sleep(METRICS_INTERVAL_S)
        await asyncio.get_running_loop().run_in_executor(None, file.refresh)


def _run_to_result(work: Coroutine[Any, Any, RunResult]) -> RunResult:
    """Run the coroutine in a new event loop; in a new thread if a loop is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
