"""Slurm's commands: submit, cancel, ask. Each is one RPC; nothing here is called in a loop shorter than 30 s."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.errors import BackendError, SubmissionRefused
from muster.exit_codes import TERMINATED
from muster.slurm.jobs import ENDED, QueuedJob, SlurmJobs, error_summary, list_user_jobs, run_slurm_command

DEFAULT_KILL_WAIT_S = 30.0


# Where a variable is not named after its option.
_VARIABLES = {
    "array": "SBATCH_ARRAY_INX",
    "mem": "SBATCH_MEM_PER_NODE",
    "switches": "SBATCH_REQ_SWITCH",
    "time": "SBATCH_TIMELIMIT",
}


def submit(script: str, written: Iterable[str], more: Sequence[str] = (), arguments: Sequence[str] = ()) -> SlurmJobs:
    """sbatch, with `more` of its options and `arguments` of the script's; returns the job and its cluster.

    sbatch would let SBATCH_ variables win over the options written in the script. It names the cluster where one was
    asked for, by an option or a variable: of several it chooses one.
    """
    env, names = dict(os.environ), {*written, *(word.lstrip("-").partition("=")[0] for word in more)}
    for name in (*names, "array"):
        env.pop(_VARIABLES.get(name, "SBATCH_" + name.upper().replace("-", "_")), None)
    if "clusters" in names:
        env.pop("SLURM_CLUSTERS", None)
    done = _command(["sbatch", "--parsable", *more, script, *arguments], env)
    if done.returncode != 0:
        raise SubmissionRefused(f"sbatch refused the job: {error_summary(done.stderr)}")
    job_id, _, cluster = done.stdout.strip().partition(";")
    return SlurmJobs((job_id,), cluster or None)


def state_of(jobs: SlurmJobs, seen: Sequence[QueuedJob]) -> str | None:
    """PENDING, RUNNING, ... ; None when none of the jobs is known.

    Of several jobs: the state of the first that has not ended, else the last one's. A job of several groups has a line
    for each, in no order: the run lives and dies with the first group's.
    """
    states = {each.id: each.state for each in seen}
    known = [state for one in jobs.ids if (state := states.get(f"{one}+0", states.get(one)))]
    known = known or list(states.values())[:1]
    return next((state for state in known if state not in ENDED), known[-1] if known else None)


def exit_code(jobs: SlurmJobs) -> int | None:
    """The code with which the last job's script left, 143 if it was cancelled; None where Slurm cannot tell."""
    shown = _show(jobs)
    if "JobState=CANCELLED" in shown:
        return TERMINATED
    match = re.search(r"JobState=(?:COMPLETED|FAILED) .*?ExitCode=(\d+):0", shown)
    return int(match[1]) if match else None


def has_lost_batch_host(jobs: SlurmJobs) -> bool:
    """Whether the job runs on without the node of its script: with --no-kill, Slurm only takes that node away."""
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
    """The user's jobs that are not over."""

    jobs: tuple[QueuedJob, ...]

    def has(self, job_id: str, script: str) -> bool:
        """Whether a job has this id, or is one of its array's, or runs this script."""
        array = job_id.partition("_")[0]
        return any(re.split(r"[_+]", job.id)[0] == array or job.runs(script) for job in self.jobs)


def queue(cluster: str | None = None) -> Queue:
    """Everything that is pending, running or completing, in one RPC."""
    return Queue(tuple(list_user_jobs(os.geteuid(), cluster)))


@functools.lru_cache(maxsize=1)
def _config() -> str:
    """Slurm's configuration; asked once, at submission."""
    try:
        return run_slurm_command("scontrol", "show", "config").stdout
    except BackendError:
        return ""


def kill_wait() -> float:
    """Seconds between Slurm's TERM and KILL here."""
    match = re.search(r"KillWait\s*=\s*(\d+)", _config())
    return float(match[1]) if match else DEFAULT_KILL_WAIT_S


def cluster_here() -> str | None:
    """The name of the cluster that this host's commands speak to."""
    match = re.search(r"ClusterName\s*=\s*(\S+)", _config())
    return match[1] if match else None


def partition_sizes() -> dict[str, int]:
    """Nodes of every partition, by name; the default one also under "". Empty when Slurm does not answer."""
    sizes: dict[str, int] = {}
    for line in _command(["sinfo", "--noheader", "--noconvert", "--format=%P %D"]).stdout.splitlines():
        name, _, nodes = line.strip().partition(" ")
        for key in {name.rstrip("*"), "" if name.endswith("*") else name.rstrip("*")}:
            sizes[key] = sizes.get(key, 0) + int(nodes)  # one line for each state that its nodes are in
    return sizes


def _command(argv: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{argv[0]} could not be run: {error}") from error
