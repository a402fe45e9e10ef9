"""Starting a prepared run: by sbatch, or as a child of this process, or detached from it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from muster.errors import Mistake, SubmissionRefused
from muster.launch import job_array
from muster.launch.run_writer import Prepared, option_names, write_run
from muster.process import ManagedProcess, Scope
from muster.rundir import write_json
from muster.runs.index import register_run
from muster.slurm import client
from muster.slurm.jobs import SlurmJobs, cancel_jobs
from muster.spec import JobSpec
from muster.spec.fields.groups import Group, resolved

NO_JOBS = SlurmJobs(())
OWNER_LOST_EXTRA_S = 15.0  # beyond the driver's grace, when `muster run` itself is killed


def submit_batch(prepared: Prepared) -> str:
    """sbatch the run; returns the job id. A refused job leaves no run directory."""
    return submit_batches([prepared])


def submit_batches(runs: Sequence[Prepared]) -> str:
    """sbatch one script for all these runs: one, or those of an array; returns the job id."""
    asked = time.time()
    _check_size(runs[0])
    try:
        for prepared in runs:
            write_run(prepared)
    except BaseException:
        _remove(runs)
        raise
    try:
        jobs = _submit_chain(runs[0])
    except SubmissionRefused:
        _remove(runs)
        raise
    for prepared in runs:
        own = jobs.only([job_array.job_id(prepared, job) for job in jobs.ids])
        _record(prepared, asked, own.ids[0], pid=None, jobs=own, script=runs[0].run.script)
    return jobs.ids[0]


def _submit_chain(prepared: Prepared) -> SlurmJobs:
    """The job, and those that follow it whatever its end: by its id, since other jobs may have the same name.

    Where the first went to one of several clusters, the others follow it there: elsewhere its id means another job.
    """
    written = option_names(prepared)
    jobs = client.submit(prepared.run.script, written)
    for link in range(2, prepared.spec.chain + 1):
        after = [f"--dependency=afterany:{jobs.ids[-1]}"]
        where = [f"--clusters={jobs.cluster}"] if jobs.cluster else []
        try:
            following = client.submit(prepared.run.script, written, [*after, *where], [str(link)])
        except SubmissionRefused as error:
            cancel_jobs(jobs)
            raise SubmissionRefused(
                f"job {link} of the chain: {error}; the {link - 1} before were cancelled"
            ) from error
        jobs = jobs.only([*jobs.ids, *following.ids])
    return jobs


def _remove(runs: Sequence[Prepared]) -> None:
    for prepared in runs:
        shutil.rmtree(prepared.run.root, ignore_errors=True)


def _check_size(prepared: Prepared) -> None:
    """Slurm takes a job that no partition can ever hold, and lets it wait for good: refuse it here."""
    spec = prepared.spec
    if "clusters" in spec.sbatch or any(name in os.environ for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")):
        return  # another cluster's partitions
    sizes = client.partition_sizes()
    wanted: dict[str, int] = {}
    parts: Sequence[Group | JobSpec] = resolved(spec) or [spec]
    for group in parts:  # two groups never share a node
        wanted[group.partition or ""] = wanted.get(group.partition or "", 0) + group.nodes + spec.spares
    for partition, nodes in wanted.items():
        names = partition.split(",")
        known = [sizes[name] for name in names if name in sizes]
        if len(known) == len(names) and nodes > max(known):
            where = f"partition {partition}" if partition else "the default partition"
            spares = f" with --spares {spec.spares}" if spec.spares else ""
            raise Mistake(f"--nodes {nodes - spec.spares}{spares}: {where} has {max(known)} nodes")


def start_detached(prepared: Prepared) -> int:
    """Start the job script in a session of its own; returns its pid."""
    asked = time.time()
    write_run(prepared)
    with open(prepared.run.output_file, "ab") as output:
        process = subprocess.Popen(
            ["bash", prepared.run.script],
            cwd=prepared.workdir,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    process.returncode = 0  # nobody is going to wait for it
    _record(prepared, asked, job_id_here(prepared), process.pid)
    return process.pid


@asynccontextmanager
async def attached(prepared: Prepared) -> AsyncIterator[ManagedProcess]:
    """Run the job script until it ends by itself; if this process is killed, its supervisor ends the run."""
    asked = time.time()
    write_run(prepared)
    grace = prepared.spec.stop_grace + OWNER_LOST_EXTRA_S
    async with Scope("run", lost_owner_grace=grace) as scope:
        with open(prepared.run.output_file, "ab") as output:
            process = await scope.spawn(
                ["bash", prepared.run.script],
                cwd=prepared.workdir,
                stdout=output.fileno(),
                stderr=output.fileno(),
            )
        _record(prepared, asked, job_id_here(prepared), process.pid)
        yield process
        await process.wait()


def job_id_here(prepared: Prepared) -> str | None:
    """The allocation that a run without a job of its own is in."""
    return os.environ.get("SLURM_JOB_ID") if prepared.place.kind == "allocation" else None


def _record(
    prepared: Prepared,
    asked: float,
    job_id: str | None,
    pid: int | None,
    jobs: SlurmJobs = NO_JOBS,
    script: str | None = None,
) -> None:
    """`asked` is when the run was asked for, `time` when it was handed over: a busy slurmctld shows between them.

    Together with the ids, `cluster`, `uid` and `script` (what was submitted) tell the run's jobs from all others.
    """
    submission = {
        "run": prepared.run.run_id,
        "backend": prepared.place.backend,
        "kind": prepared.place.kind,
        "job_id": job_id,
        "job_ids": list(jobs.ids),
        "cluster": jobs.cluster,
        "submitted_from": client.cluster_here() if jobs.ids else None,
        "uid": os.geteuid(),
        "script": script,
        "host": socket.gethostname(),
        "pid": pid,
        "asked": asked,
        "time": time.time(),
    }
    write_json(prepared.run.submission, submission)
    register_run(prepared.run)
