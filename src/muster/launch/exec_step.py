"""Build the command that starts a shell or a command on a node of a running job. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.launch.containers.render import Container, ContainerEntry, enter
from muster.rundir import AttemptPaths, RunPaths
from muster.rundir.session_command import NO_RAY_ADDRESS, SESSION_COMMAND

# srun must not see variables of the calling shell about another allocation, step or cluster, but needs those with
# which it reaches Slurm.
_SLURM_CONNECTION_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")


@dataclass(frozen=True)
class TargetNode:
    """A node of a running attempt, from the record of its agent."""

    node_index: int
    host: str
    python: str
    pid: int
    group: int | None = None  # index of its group in a hetjob


@dataclass(frozen=True)
class ExecStep:
    """A session on one node of an attempt."""

    run: RunPaths
    attempt: AttemptPaths
    node: TargetNode
    job_id: str | None  # None for a local run
    cycle: int
    ray_address: str | None
    container: Container | None = None
    cluster: str | None = None  # of the job; None: the local one

    def command(self, pty: bool) -> list[str]:
        """Return the command of the session: an overlapping step of the job, or a plain command for a local run."""
        entry = ContainerEntry()
        if self.container is not None:
            number, node = self.attempt.number, self.node
            entry = enter(self.container, self.run.run_id, self.job_id, number, node.node_index, node.pid)
        inside = [
            *entry.prefix,
            self.node.python,
            "-I",
            "-S",
            self.run.agent,
            "attach",
            self.attempt.root,
            str(self.node.node_index),
            str(self.cycle),
            self.ray_address or NO_RAY_ADDRESS,
        ]
        return inside if self.job_id is None else [*self._step(self.job_id, pty), *entry.srun_flags, *inside]

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
    """Return the environment for srun, which passes it on, with the command to run; an empty command is a shell."""
    kept = {
        name: value
        for name, value in env.items()
        if not name.startswith("SLURM_") or name in _SLURM_CONNECTION_VARIABLES
    }
    return {**kept, SESSION_COMMAND: json.dumps(list(words))}
