"""The command that starts a shell, or a command, on a node of a running job, with the run's environment. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.launch.containers.render import Container, Way, way_into
from muster.rundir import AttemptPaths, RunPaths
from muster.rundir.session_command import NO_RAY_ADDRESS, SESSION_COMMAND

# Of the shell that asks, srun must see nothing that describes another allocation or step, nor the clusters that the
# user submits to; but how to reach Slurm.
_KEPT_OF_SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")


@dataclass(frozen=True)
class TargetNode:
    """A node of a running attempt, as its agent recorded it."""

    rank: int
    host: str
    python: str
    pid: int
    group: int | None = None  # its number among several groups of nodes


@dataclass(frozen=True)
class Entry:
    """Where to go: into this attempt of this run, on this node."""

    run: RunPaths
    attempt: AttemptPaths
    node: TargetNode
    job_id: str | None  # none on this machine
    cycle: int
    ray_address: str | None
    container: Container | None = None
    cluster: str | None = None  # that has the job; None: the one that srun here speaks to

    def command(self, pty: bool) -> list[str]:
        """A session as one overlapping step of the job's; on this machine as it is."""
        way = Way()
        if self.container is not None:
            number = self.attempt.number
            way = way_into(self.container, self.run.run_id, self.job_id, number, self.node.pid)
        inside = [
            *way.prefix,
            self.node.python,
            "-I",
            "-S",
            self.run.agent,
            "attach",
            self.attempt.root,
            str(self.node.rank),
            str(self.cycle),
            self.ray_address or NO_RAY_ADDRESS,
        ]
        return inside if self.job_id is None else [*self._step(self.job_id, pty), *way.srun_flags, *inside]

    def _step(self, job_id: str, pty: bool) -> list[str]:
        step = [
            "srun",
            *([f"--clusters={self.cluster}"] if self.cluster else []),
            f"--jobid={job_id}",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={self.node.host}",
            "--mpi=none",
            "--chdir=/",
            "--quiet",
            "--disable-status",
            "--job-name=muster-attach",
        ]
        if self.node.group is not None:
            step.append(f"--het-group={self.node.group}")
        return [*step, "--pty"] if pty else step


def session_environment(env: Mapping[str, str], words: Sequence[str]) -> dict[str, str]:
    """srun's, which it passes on: with it goes the command to run, or none for a shell."""
    kept = {name: value for name, value in env.items() if not name.startswith("SLURM_") or name in _KEPT_OF_SLURM}
    return {**kept, SESSION_COMMAND: json.dumps(list(words))}
