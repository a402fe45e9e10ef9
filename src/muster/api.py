"""The Python API: the same model and the same runs as the command line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.errors import BackendError, Mistake
from muster.launch import job_array
from muster.launch.run_writer import Prepared, plan_run
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

Observer = Callable[[RunEvent | Output], None]


@dataclass(frozen=True)
class RunHandle:
    """A run that goes on by itself."""

    run: str
    run_dir: str
    job_id: str | None

    def status(self) -> dict[str, object]:
        """As `muster status --json`."""
        return read_status(RunPaths(self.run_dir))

    def wait(self, observe: Observer = lambda item: None) -> RunResult:
        """Follow the run to its end."""
        return _in_own_loop(observed(RunPaths(self.run_dir), observe))

    def stop(self) -> RunResult:
        """Ask the run to end, and wait until it has."""
        return stop_run(RunPaths(self.run_dir), "stopped through the Python API")


def load_job(file: str | Path | None = None, profile: str | None = None, **fields: Any) -> JobSpec:
    """The job as `muster run` would read it: settings of site, user, profile and environment, `file`, then `fields`.

    `JobSpec(...)` itself knows nothing of settings.
    """
    chosen = {} if profile is None else {"profile": profile}
    return read_job(None if file is None else Path(file), {**chosen, **fields})


def prepare(spec: JobSpec) -> Prepared:
    """Everything decided for this spec, here and now; nothing written or started."""
    return plan_run(spec, choose_target(spec, os.environ), Path.cwd())


def submit(spec: JobSpec) -> RunHandle:
    """Start a run and return at once. Where it has no Slurm job, it goes on in the background of this machine."""
    if spec.array is not None:
        raise Mistake("an array is as many runs as it has tasks; use submit_array")
    return submit_prepared(prepare(spec))


def submit_array(spec: JobSpec) -> list[RunHandle]:
    """Submit a job array and return at once: a run for each of its tasks, in order."""
    if spec.array is None:
        raise Mistake("this job is no array; use submit")
    return submit_tasks(prepare(spec))


def submit_tasks(prepared: Prepared) -> list[RunHandle]:
    runs = job_array.tasks(prepared)
    job_id = submit_batches(runs)
    return [RunHandle(task.run.run_id, task.run.root, job_array.job_id(task, job_id)) for task in runs]


def submit_prepared(prepared: Prepared) -> RunHandle:
    job_id: str | None = None
    if prepared.place.kind == "sbatch":
        job_id = submit_batch(prepared)
    else:
        start_detached(prepared)
        job_id = job_id_here(prepared)
    return RunHandle(prepared.run.run_id, prepared.run.root, job_id)


def run(spec: JobSpec, observe: Observer = lambda item: None) -> RunResult:
    """Run to the end. A local run, or one inside an allocation, ends with this process, however that ends."""
    if spec.array is not None:
        raise Mistake("an array is as many runs as it has tasks; use submit_array")
    prepared = prepare(spec)
    if not prepared.place.attached:
        return submit_prepared(prepared).wait(observe)
    return _in_own_loop(_run_attached(prepared, observe))


async def _run_attached(prepared: Prepared, observe: Observer) -> RunResult:
    async with attached(prepared):
        return await observed(prepared.run, observe)


async def observed(run: RunPaths, observe: Observer) -> RunResult:
    """Follow a run, showing each item to the observer; returns the result, once its report is written."""
    refreshing = asyncio.ensure_future(_refresh_metrics(run))
    try:
        async for item in follow(run):
            if isinstance(item, RunResult):
                await asyncio.get_running_loop().run_in_executor(None, ensure_report, run)
                return item
            observe(item)
    finally:
        refreshing.cancel()
    raise AssertionError("a followed run ends with its result")


async def _refresh_metrics(run: RunPaths) -> None:
    """For whoever collects them while the run goes on."""
    file = MetricsFile(run)
    while True:
        await asyncio.sleep(1.0)
        await asyncio.get_running_loop().run_in_executor(None, file.refresh)


def _in_own_loop(work: Callable[..., object] | object) -> RunResult:
    """Also where a loop runs already (a notebook): then in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()  # type: ignore[arg-type]
