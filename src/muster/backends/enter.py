"""The command that starts a shell, or a command, on a node of a running job, with the run's environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.agent.attach import NO_ADDRESS
from muster.board import AttemptPaths, RunPaths

# Of the shell that asks, srun must see nothing that describes another allocation or step; but how to reach Slurm.
_KEPT_OF_SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")


@dataclass(frozen=True)
class Node:
    """A node of a running attempt, as its agent recorded it."""

    rank: int
    host: str
    python: str


@dataclass(frozen=True)
class Entry:
    """Where to go: into this attempt of this run, on this node."""

    run: RunPaths
    attempt: AttemptPaths
    node: Node
    job_id: str | None  # none on this machine
    cycle: int
    ray_address: str | None

    def command(self, words: Sequence[str], pty: bool) -> list[str]:
        """`words`, or a shell without any, as one overlapping step of the job's; on this machine as it is."""
        flags, prefix = entering(self.run)
        inside = [
            *prefix, self.node.python, "-I", "-S", self.run.agent, "attach", self.attempt.root, str(self.node.rank),
            str(self.cycle), self.ray_address or NO_ADDRESS, *words,
        ]  # fmt: skip
        return inside if self.job_id is None else [*_step(self.job_id, self.node.host, pty), *flags, *inside]


def entering(run: RunPaths) -> tuple[list[str], list[str]]:
    """srun's flags, and words before the command, that lead into the container of the run's nodes."""
    return [], []


def srun_environment(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith("SLURM_") or name in _KEPT_OF_SLURM}


def _step(job_id: str, host: str, pty: bool) -> list[str]:
    step = [
        "srun", f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}",
        "--mpi=none", "--chdir=/", "--quiet", "--disable-status", "--job-name=muster-attach",
    ]  # fmt: skip
    return [*step, "--pty"] if pty else step
