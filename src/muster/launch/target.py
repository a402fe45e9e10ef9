"""Choose the target of a job (local, sbatch or the current allocation), its number of nodes and its interpreter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.errors import Mistake
from muster.launch import hetjob
from muster.spec import JobSpec


@dataclass(frozen=True)
class Target:
    """The place where a job will run."""

    kind: str  # local | sbatch | allocation
    nodes: int  # of the job, without spares

    @property
    def backend(self) -> str:
        return "local" if self.kind == "local" else "slurm"

    @property
    def attached(self) -> bool:
        """Whether the run ends with `muster run`: then an interrupt stops it instead of detaching."""
        return self.kind != "sbatch"


def choose_target(spec: JobSpec, env: Mapping[str, str]) -> Target:
    """Return the target. auto: the current allocation, else sbatch if it is installed, else this machine."""
    inside = "SLURM_JOB_ID" in env and shutil.which("srun", path=env.get("PATH")) is not None
    if spec.backend == "local":
        return Target("local", spec.nodes)
    if inside:
        _check_allocation(spec, env)
        return Target("allocation", _nodes_in_allocation(spec, env))
    if shutil.which("sbatch", path=env.get("PATH")):
        return Target("sbatch", spec.nodes)
    if spec.backend == "slurm":
        raise Mistake("--backend slurm: sbatch is not on PATH; use --backend local to run on this machine")
    if spec.array is not None:
        raise Mistake("--array: sbatch is not on PATH, and the local backend has no job arrays")
    return Target("local", spec.nodes)


def _check_allocation(spec: JobSpec, env: Mapping[str, str]) -> None:
    """Raise Mistake if the allocation cannot hold the job: it has no array tasks and a fixed set of groups."""
    job = env["SLURM_JOB_ID"]
    if spec.array is not None:
        raise Mistake(f"--array: not possible inside an allocation (job {job}); submit from outside it")
    problem = hetjob.mismatch(spec.groups, env) if spec.groups else None
    if problem is not None:
        raise Mistake(f"the allocation (job {job}) does not have the job's groups: {problem}")


def _nodes_in_allocation(spec: JobSpec, env: Mapping[str, str]) -> int:
    if spec.groups:
        return spec.nodes
    have = int(env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or 1)
    nodes = spec.nodes if spec.nodes_given else max(1, have - spec.spares)
    nodes = max(spec.fewest_nodes, min(nodes, have - spec.spares)) if spec.min_nodes is not None else nodes
    if nodes + spec.spares > have:
        requested = [f"--nodes {spec.fewest_nodes}"] if spec.nodes_given else []
        requested += [f"--spares {spec.spares}"] if spec.spares else []
        job, few = env["SLURM_JOB_ID"], f"{have} node{'s' * (have != 1)}, too few for {' and '.join(requested)}"
        raise Mistake(f"the allocation (job {job}) has {few}")
    return nodes


def choose_python(spec: JobSpec, env: Mapping[str, str], cwd: Path) -> str:
    """Return the nodes' interpreter: --python, the active environment, ./.venv, else python3 after --setup.

    In a container it is --python, else python3: interpreters of this machine do not exist there.
    """
    if spec.container_image is not None:
        return spec.python or "python3"
    if spec.python is not None:
        if os.sep not in spec.python:
            return spec.python  # a name, which the node looks up after --setup
        path = cwd / Path(spec.python).expanduser()
        if not os.access(path, os.X_OK):
            raise Mistake(f"--python {spec.python}: no such interpreter")
        return str(path)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if (prefix := env.get(variable)) and (path := Path(prefix) / "bin" / "python").exists():
            return str(path)
    local = cwd / ".venv" / "bin" / "python"
    return str(local) if local.exists() else "python3"
