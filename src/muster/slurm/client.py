"""Submit jobs and query Slurm from a login node. Each call is one RPC; callers poll at most every 30 s."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from muster.errors import BackendError, SubmissionRefused
from muster.exit_codes import TERMINATED
from muster.slurm.jobs import (
    COMMAND_TIMEOUT_S,
    ENDED,
    QueuedJob,
    SlurmJobs,
    error_summary,
    list_user_jobs,
    run_slurm_command,
)

DEFAULT_KILL_WAIT_S = 30.0  # Slurm's default for KillWait

# sbatch variables that are not named after their option.
_VARIABLES = {
    "array": "SBATCH_ARRAY_INX",
    "mem": "SBATCH_MEM_PER_NODE",
    "switches": "SBATCH_REQ_SWITCH",
    "time": "SBATCH_TIMELIMIT",
}


def submit(script: str, written: Iterable[str], more: Sequence[str] = (), arguments: Sequence[str] = ()) -> SlurmJobs:
    """Run sbatch and return the job and its cluster. Raises SubmissionRefused.

    `written` are the options in the script: SBATCH_ variables, which would take precedence over them, are removed.
    `more` are further options, `arguments` those of the script. sbatch reports the cluster only where an option or a
    variable asked for one or more; of several it chooses one.
    """
    done = _sbatch(["--parsable", *more], script, written, arguments)
    if done.returncode != 0:
        raise SubmissionRefused(f"sbatch refused the job: {error_summary(done.stderr)}")
    job_id, _, cluster = done.stdout.strip().partition(";")
    return SlurmJobs((job_id,), cluster or None)


def refusal(script: str, written: Iterable[str], more: Sequence[str]) -> str | None:
    """Return why the job, with these further options, could never run; None if it could. Nothing is submitted."""
    done = _sbatch(["--test-only", *more], script, written)
    return error_summary(done.stderr) if done.returncode else None


def _sbatch(
    options: Sequence[str], script: str, written: Iterable[str], arguments: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    env, names = dict(os.environ), {*written, *(option.lstrip("-").partition("=")[0] for option in options)}
    for name in (*names, "array"):
        env.pop(_VARIABLES.get(name, "SBATCH_" + name.upper().replace("-", "_")), None)
    if "clusters" in names:
        env.pop("SLURM_CLUSTERS", None)
    return _command(["sbatch", *options, script, *arguments], env)


def state_of(jobs: SlurmJobs, seen: Sequence[QueuedJob]) -> str | None:
    """Return PENDING, RUNNING, ...; None if Slurm knows none of the jobs.

    Of several jobs it is the state of the first that has not ended, else of the last. A hetjob has a line for each
    group, in any order: the first group's state counts, since the run ends with it.
    """
    states = {each.id: each.state for each in seen}
    known = [state for one in jobs.ids if (state := states.get(f"{one}+0", states.get(one)))]
    known = known or list(states.values())[:1]
    return next((state for state in known if state not in ENDED), known[-1] if known else None)


def exit_code(jobs: SlurmJobs) -> int | None:
    """Return the exit code of the last job's script, 143 if it was cancelled; None where Slurm has none."""
    shown = _show(jobs)
    if "JobState=CANCELLED" in shown:
        return TERMINATED
    match = re.search(r"JobState=(?:COMPLETED|FAILED) .*?ExitCode=(\d+):0", shown)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class PendingJob:
    """Why a job waits, in Slurm's word, and its expected start in seconds since the epoch; None if Slurm has none."""

    reason: str
    start: float | None


def pending_job(jobs: SlurmJobs) -> PendingJob | None:
    """Return why the first job waits, such as Resources or Priority, and its start; None if it is not pending.

    Slurm's scheduler estimates the start of the first jobs in the queue, in the local time of this host.
    """
    shown = _show(jobs.only(jobs.ids[:1]))
    match = re.search(r"JobState=PENDING Reason=(\S+)", shown)
    if match is None:
        return None
    start = re.search(r"\bStartTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", shown)
    return PendingJob(match[1], datetime.fromisoformat(start[1]).timestamp() if start else None)


def has_lost_batch_host(jobs: SlurmJobs) -> bool:
    """Whether the job runs on without the node of its script: with --no-kill, Slurm only removes that node."""
    shown = _show(jobs)
    match = re.search(r" NodeList=(\S+) .*?BatchHost=(\S+)", shown)
    if match is None or "JobState=RUNNING" not in shown:
        return False
    hosts = run_slurm_command("scontrol", "show", "hostnames", match[1]).stdout.split()
    return bool(hosts) and match[2] not in hosts


def _show(jobs: SlurmJobs) -> str:
    return run_slurm_command("scontrol", "--oneliner", "show", "job", jobs.ids[-1], cluster=jobs.cluster).stdout


@dataclass(frozen=True)
class Queue:
    """The user's jobs that are pending, running or completing."""

    jobs: tuple[QueuedJob, ...]

    def has(self, job_id: str, script: str) -> bool:
        """Whether a job has this id, belongs to its array, or runs this script."""
        array = job_id.partition("_")[0]
        return any(re.split(r"[_+]", job.id)[0] == array or job.runs(script) for job in self.jobs)


def queue(cluster: str | None = None) -> Queue:
    """Return the user's queue, in one RPC."""
    return Queue(tuple(list_user_jobs(os.geteuid(), cluster)))


@functools.lru_cache(maxsize=1)
def _config() -> str:
    """Return Slurm's configuration, queried once; empty if Slurm does not answer."""
    try:
        return run_slurm_command("scontrol", "show", "config").stdout
    except BackendError:
        return ""


def kill_wait() -> float:
    """Return the seconds between Slurm's TERM and KILL on this cluster."""
    match = re.search(r"KillWait\s*=\s*(\d+)", _config())
    return float(match[1]) if match else DEFAULT_KILL_WAIT_S


def cluster_here() -> str | None:
    """Return the default cluster of this host's Slurm commands."""
    match = re.search(r"ClusterName\s*=\s*(\S+)", _config())
    return match[1] if match else None


def partition_sizes() -> dict[str, int]:
    """Return the number of nodes by partition, the default one also under ""; empty if Slurm does not answer."""
    sizes: dict[str, int] = {}
    for line in _command(["sinfo", "--noheader", "--noconvert", "--format=%P %D"]).stdout.splitlines():
        name, _, nodes = line.strip().partition(" ")
        for key in {name.rstrip("*"), "" if name.endswith("*") else name.rstrip("*")}:
            sizes[key] = sizes.get(key, 0) + int(nodes)  # one line for each state of its nodes
    return sizes


def node_names() -> list[str]:
    """Return the names of all nodes; empty if Slurm does not answer."""
    return _command(["sinfo", "--noheader", "--Node", "--format=%N"]).stdout.split()


def _command(argv: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{argv[0]} could not be run: {error}") from error
