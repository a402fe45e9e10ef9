"""Start a prepared run: with sbatch, as a child of this process, or detached from it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import BinaryIO

from muster.errors import BackendError, Mistake, SubmissionRefused
from muster.launch.node_avoidance import exclusion
from muster.launch.plan import Prepared, script_options, task_job_id
from muster.launch.run_writer import write_run
from muster.process import ManagedProcess, Scope
from muster.rundir import private_opener
from muster.rundir.records import Submission, write_submission
from muster.runs.index import register_run
from muster.slurm import client
from muster.slurm.jobs import SlurmJobs, cancel_jobs
from muster.spec import JobSpec
from muster.spec.fields.groups import Group, resolved

NO_JOBS = SlurmJobs(())
LOST_OWNER_EXTRA_S = 15.0  # beyond the driver's grace period, if `muster run` is killed


def submit_batch(prepared: Prepared) -> str:
    """Submit the run with sbatch and return the job id. A refused job leaves no run directory."""
    return submit_batches([prepared])


def submit_batches(runs: Sequence[Prepared]) -> str:
    """Submit one job script for one run, or for all runs of an array, and return the job id."""
    started = time.time()
    _check_size(runs[0])
    try:
        for prepared in runs:
            write_run(prepared)
    except BaseException:
        _remove(runs)
        raise
    try:
        jobs = _submit_chain(runs[0], exclusion(runs[0]))
    except SubmissionRefused:
        _remove(runs)
        raise
    try:
        for prepared in runs:
            own = jobs.only([task_job_id(prepared, job) for job in jobs.ids])
            _record(prepared, started, own.ids[0], pid=None, jobs=own, script=runs[0].run.script)
    except BackendError as error:  # e.g. a full disk: without the record no command would find the job
        cancel_jobs(jobs)
        raise BackendError(f"cancelled Slurm job {jobs}: {error}") from error
    return jobs.ids[0]


def _submit_chain(prepared: Prepared, more: list[str]) -> SlurmJobs:
    """Submit the job and the other jobs of its chain, each of which starts after the end of the one before.

    `more` are further options of all of them.
    The dependency uses job ids, since other jobs may have the same name, so all go to the cluster of the first job.
    """
    options = script_options(prepared)
    jobs = client.submit(prepared.run.script, options, more)
    for link in range(2, prepared.spec.chain + 1):
        after = [f"--dependency=afterany:{jobs.ids[-1]}"]
        cluster = [f"--clusters={jobs.cluster}"] if jobs.cluster else []
        try:
            following = client.submit(prepared.run.script, options, [*more, *after, *cluster], [str(link)])
        except SubmissionRefused as error:
            cancel_jobs(jobs)
            raise SubmissionRefused(
                f"job {link} of the chain: {error}; the {link - 1} jobs before it were cancelled"
            ) from error
        jobs = jobs.only([*jobs.ids, *following.ids])
    return jobs


def _remove(runs: Sequence[Prepared]) -> None:
    for prepared in runs:
        shutil.rmtree(prepared.run.root, ignore_errors=True)


def _check_size(prepared: Prepared) -> None:
    """Raise Mistake for a job larger than its partition, which Slurm would leave pending forever."""
    spec = prepared.spec
    if "clusters" in spec.sbatch or any(name in os.environ for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")):
        return  # the sizes below are those of this cluster's partitions
    sizes = client.partition_sizes()
    wanted: dict[str, int] = {}
    parts: Sequence[Group | JobSpec] = resolved(spec) or [spec]
    for group in parts:  # groups never share nodes
        fewest = group.fewest_nodes if isinstance(group, JobSpec) else group.nodes
        wanted[group.partition or ""] = wanted.get(group.partition or "", 0) + fewest + spec.spares
    for partition, nodes in wanted.items():
        names = partition.split(",")
        known = [sizes[name] for name in names if name in sizes]
        if len(known) == len(names) and nodes > max(known):
            where = f"partition {partition}" if partition else "the default partition"
            spares = f" with --spares {spec.spares}" if spec.spares else ""
            raise Mistake(f"--nodes {nodes - spec.spares}{spares}: {where} has {max(known)} nodes")


WRITE_TRIES, WRITE_RETRY_S = 60, 1.0  # for the record of a started job
MAX_ARGUMENT_BYTES = 120_000  # Linux allows 131,072 for one argument


def _script_command(prepared: Prepared) -> list[str]:
    """Return the command that runs the job script. Its text is an argument: reading the file may fail or hang."""
    if len(prepared.script.encode()) > MAX_ARGUMENT_BYTES:
        return ["bash", prepared.run.script]
    return ["bash", "-c", prepared.script, prepared.run.script]


def _open_output(prepared: Prepared) -> BinaryIO:
    try:
        return open(prepared.run.output_file, "ab", opener=private_opener)
    except OSError as error:
        raise BackendError(f"cannot write to the run directory {prepared.run.root}: {error.strerror}") from error


def start_detached(prepared: Prepared) -> int:
    """Start the job script in a new session and return its pid."""
    started = time.time()
    write_run(prepared)
    with _open_output(prepared) as output:
        process = subprocess.Popen(
            _script_command(prepared),
            cwd=prepared.workdir,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    process.returncode = 0  # this process never waits for it; Popen would warn
    _record(prepared, started, job_id_here(prepared), process.pid)
    return process.pid


@asynccontextmanager
async def attached(prepared: Prepared) -> AsyncIterator[ManagedProcess]:
    """Run the job script until it exits; if this process is killed, its supervisor stops the run."""
    started = time.time()
    write_run(prepared)
    grace = prepared.spec.stop_grace + LOST_OWNER_EXTRA_S
    async with Scope("run", lost_owner_grace=grace) as scope:
        with _open_output(prepared) as output:
            process = await scope.spawn(
                _script_command(prepared),
                cwd=prepared.workdir,
                stdout=output.fileno(),
                stderr=output.fileno(),
            )
        _record(prepared, started, job_id_here(prepared), process.pid)
        yield process
        await process.wait()


def job_id_here(prepared: Prepared) -> str | None:
    """Return the id of the allocation that a run inside one uses."""
    return os.environ.get("SLURM_JOB_ID") if prepared.target.kind == "allocation" else None


def _record(
    prepared: Prepared,
    started: float,
    job_id: str | None,
    pid: int | None,
    jobs: SlurmJobs = NO_JOBS,
    script: str | None = None,
) -> None:
    """Write the submission record, and make the run findable from any directory."""
    submission = Submission(
        run=prepared.run.run_id,
        backend=prepared.target.backend,
        kind=prepared.target.kind,
        job_id=job_id,
        job_ids=tuple(jobs.ids),
        cluster=jobs.cluster,
        submitted_from=client.cluster_here() if jobs.ids else None,
        uid=os.geteuid(),
        script=script,
        host=socket.gethostname(),
        pid=pid,
        asked=started,
        time=time.time(),
    )
    for left in reversed(range(WRITE_TRIES)):
        try:
            write_submission(prepared.run, submission)
            break
        except OSError as error:  # the job exists: a filesystem that has lost its server for a while must not lose it
            if not left:
                running = f"; its job script runs as process {pid}" if pid else ""
                where = f"the run directory {prepared.run.root}"
                raise BackendError(f"cannot write to {where}: {error.strerror}{running}") from error
            time.sleep(WRITE_RETRY_S)
    register_run(prepared.run)
