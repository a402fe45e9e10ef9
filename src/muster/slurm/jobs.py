"""Query and cancel Slurm jobs, on their cluster. Used on nodes and login nodes; standard library only.

Job ids are not unique: other clusters use the same ones, and a controller that lost its state begins again with 1. So
callers identify a job by its `QueuedJob` before they cancel it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from muster.errors import BackendError

COMMAND_TIMEOUT_S = 120.0  # slurmctld may be busy for a minute; Slurm's own message timeout is 10 to 100 s
_COMMAND_CHARS = 8192  # enough for the job's script with its arguments: a path has at most 4096
_FIELDS = f"JobArrayID:64|,State:32|,RestartCnt:12|,UserID:12|,SubmitTime:24|,Command:{_COMMAND_CHARS}|"

# Variables that may hide jobs from squeue, make scancel interactive, or choose another cluster.
_REMOVED_VARIABLES = ("SQUEUE_", "SCANCEL_", "SLURM_CLUSTERS")

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
    """A Slurm command could not be run, or failed."""


@dataclass(frozen=True)
class SlurmJobs:
    """Slurm jobs by the ids of their submission (`17`, for a task of an array `17_3`), and their cluster.

    `cluster` None means the default cluster of this host's Slurm commands.
    """

    ids: tuple[str, ...]
    cluster: str | None = None

    def __str__(self) -> str:
        return ", ".join(self.ids) + (f" of cluster {self.cluster}" if self.cluster else "")

    def only(self, ids: Sequence[str]) -> SlurmJobs:
        """Return jobs with other ids on the same cluster."""
        return SlurmJobs(tuple(ids), self.cluster)


@dataclass(frozen=True)
class QueuedJob:
    """A line of squeue: a job, a task of an array or a group of a hetjob."""

    id: str  # 17, 17_3, 17+1
    state: str
    restarts: int
    uid: int
    submitted: float
    command: str  # the script as submitted, and its arguments

    @property
    def submitted_id(self) -> str:
        """The id without the group of a hetjob."""
        return self.id.partition("+")[0]

    @property
    def holds_nodes(self) -> bool:
        """Whether the job has nodes and has not begun to end."""
        return not (self.state in ENDED or self.state in ENDING or self.state in WAITING)

    def runs(self, script: str) -> bool:
        return self.command == script or self.command.startswith(script + " ")


def run_slurm_command(
    program: str, *arguments: str, cluster: str | None = None, timeout: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command for this cluster, regardless of the user's environment. Raises SlurmError."""
    argv = [program, *([f"--clusters={cluster}"] if cluster else []), *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith(_REMOVED_VARIABLES)}
    env["SLURM_TIME_FORMAT"] = "%s"
    try:
        return subprocess.run(argv, capture_output=True, text=True, errors="replace", env=env, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{program} could not be run: {error}") from error


def list_jobs(jobs: SlurmJobs, timeout: float = COMMAND_TIMEOUT_S) -> list[QueuedJob]:
    """Return the jobs that squeue knows; ended ones stay there for a few minutes. One RPC."""
    if not jobs.ids:
        return []
    arguments = ("--noheader", "--array", "--states=all", f"--jobs={','.join(jobs.ids)}", f"--Format={_FIELDS}")
    done = run_slurm_command("squeue", *arguments, cluster=jobs.cluster, timeout=timeout)
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        raise SlurmError(f"squeue failed: {error_summary(done.stderr)}")
    return parse_squeue(done.stdout)


def list_user_jobs(uid: int, cluster: str | None = None) -> list[QueuedJob]:
    """Return all jobs of a user that are pending, running or completing. One RPC."""
    done = run_slurm_command("squeue", "--noheader", f"--user={uid}", f"--Format={_FIELDS}", cluster=cluster)
    if done.returncode != 0:
        raise SlurmError(f"squeue failed: {error_summary(done.stderr)}")
    return parse_squeue(done.stdout)


def parse_squeue(text: str) -> list[QueuedJob]:
    """Parse squeue's output. With --clusters some releases print the cluster's name first, despite --noheader."""
    seen = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.rstrip().rstrip("|").split("|", 5)]
        if len(fields) == 6 and fields[2].isdigit() and fields[3].isdigit():
            submitted = float(fields[4]) if fields[4].isdigit() else 0.0
            seen.append(QueuedJob(fields[0], fields[1], int(fields[2]), int(fields[3]), submitted, fields[5]))
    return seen


def cancel_jobs(jobs: SlurmJobs, pending_only: bool = False, timeout: float = COMMAND_TIMEOUT_S) -> None:
    """Run scancel for jobs that the caller has identified as the run's. Raises SlurmError."""
    filters = ["--state=PENDING"] if pending_only else []
    done = run_slurm_command("scancel", *filters, *jobs.ids, cluster=jobs.cluster, timeout=timeout)
    if done.returncode != 0:
        raise SlurmError(f"scancel {jobs} failed: {error_summary(done.stderr)}")


def error_summary(text: str) -> str:
    """Return the last two lines of a command's stderr on one line."""
    lines = [re.sub("^sbatch: error: ", "", line).strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-2:]) or "no reason given"
