"""Slurm's commands about jobs: the one place that gives them a job's cluster and that tells whose job an id is.

Job ids are not unique: another cluster has the same ones, and a controller that lost its state begins again with 1. So
a job is identified by what `squeue` says of it before it is cancelled. Nodes and login nodes use the same functions.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from muster.errors import BackendError

COMMAND_S = 120.0  # slurmctld may be busy for a minute; Slurm's own message timeout is 10 to 100 s
_COMMAND_CHARS = 8192  # of the job's script with its arguments: a path has at most 4096
_FIELDS = f"JobArrayID:64|,State:32|,RestartCnt:12|,UserID:12|,SubmitTime:24|,Command:{_COMMAND_CHARS}|"

# The user's settings for these commands may hide jobs from squeue, make scancel ask, or choose another cluster.
_SETTINGS = ("SQUEUE_", "SCANCEL_")
_CLUSTERS = "SLURM_CLUSTERS"

ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    ]
)
ENDING = frozenset(["COMPLETING", "STAGE_OUT"])
WAITING = frozenset(["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "REVOKED", "SPECIAL_EXIT"])


class SlurmError(BackendError):
    """A command of Slurm's could not be run, or failed."""


@dataclass(frozen=True)
class SlurmJobs:
    """Slurm jobs by the ids of their submission (`17`, of an array's task `17_3`), and the cluster that has them.

    Without `cluster` they are jobs of the cluster that this host's commands speak to.
    """

    ids: tuple[str, ...]
    cluster: str | None = None

    def __str__(self) -> str:
        return ", ".join(self.ids) + (f" of cluster {self.cluster}" if self.cluster else "")

    def only(self, ids: Sequence[str]) -> SlurmJobs:
        return SlurmJobs(tuple(ids), self.cluster)


@dataclass(frozen=True)
class QueuedJob:
    """A job, a task of an array or a group of a job, as squeue shows it."""

    id: str  # 17, 17_3, 17+1
    state: str
    restarts: int
    uid: int
    submitted: float
    command: str  # the script as it was submitted, and its arguments

    @property
    def submitted_id(self) -> str:
        """The id of the job that this is a group of."""
        return self.id.partition("+")[0]

    @property
    def holds_nodes(self) -> bool:
        """Whether it has nodes and nothing has begun to end it."""
        return not (self.state in ENDED or self.state in ENDING or self.state in WAITING)

    def runs(self, script: str) -> bool:
        return self.command == script or self.command.startswith(script + " ")


def run_slurm_command(
    program: str, *words: str, cluster: str | None = None, timeout: float = COMMAND_S
) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's for this cluster, whatever the user's environment would choose."""
    argv = [program, *([f"--clusters={cluster}"] if cluster else []), *words]
    env = {name: value for name, value in os.environ.items() if name != _CLUSTERS and not name.startswith(_SETTINGS)}
    env["SLURM_TIME_FORMAT"] = "%s"
    try:
        return subprocess.run(argv, capture_output=True, text=True, errors="replace", env=env, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{program} could not be run: {error}") from error


def list_jobs(jobs: SlurmJobs, timeout: float = COMMAND_S) -> list[QueuedJob]:
    """What squeue shows of these jobs; ended ones stay there for a few minutes. One RPC."""
    if not jobs.ids:
        return []
    asked = ("--noheader", "--array", "--states=all", f"--jobs={','.join(jobs.ids)}", f"--Format={_FIELDS}")
    done = run_slurm_command("squeue", *asked, cluster=jobs.cluster, timeout=timeout)
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        raise SlurmError(f"squeue failed: {error_summary(done.stderr)}")
    return parse_squeue(done.stdout)


def list_user_jobs(uid: int, cluster: str | None = None) -> list[QueuedJob]:
    """All jobs of this user that are pending, running or completing. One RPC."""
    done = run_slurm_command("squeue", "--noheader", f"--user={uid}", f"--Format={_FIELDS}", cluster=cluster)
    if done.returncode != 0:
        raise SlurmError(f"squeue failed: {error_summary(done.stderr)}")
    return parse_squeue(done.stdout)


def parse_squeue(text: str) -> list[QueuedJob]:
    """The lines of squeue. With --clusters some releases print the cluster's name first, also without header."""
    seen = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.rstrip().rstrip("|").split("|", 5)]
        if len(fields) == 6 and fields[2].isdigit() and fields[3].isdigit():
            submitted = float(fields[4]) if fields[4].isdigit() else 0.0
            seen.append(QueuedJob(fields[0], fields[1], int(fields[2]), int(fields[3]), submitted, fields[5]))
    return seen


def cancel_jobs(jobs: SlurmJobs, pending_only: bool = False, timeout: float = COMMAND_S) -> None:
    """scancel; for jobs that are known to be the run's."""
    which = ["--state=PENDING"] if pending_only else []
    done = run_slurm_command("scancel", *which, *jobs.ids, cluster=jobs.cluster, timeout=timeout)
    if done.returncode != 0:
        raise SlurmError(f"scancel {jobs} failed: {error_summary(done.stderr)}")


def error_summary(text: str) -> str:
    lines = [re.sub("^sbatch: error: ", "", line).strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-2:]) or "no reason given"
