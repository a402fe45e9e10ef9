"""Plan a run: decide everything about it, its job script included, without writing or starting anything."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from muster.errors import Mistake
from muster.launch import hetjob, job_script, local_launcher, requeue, slurm_directives
from muster.launch.containers import render
from muster.launch.containers.discover import container_of
from muster.launch.containers.render import Container
from muster.launch.secret_check import refuse_exposed
from muster.launch.target import Target, choose_python
from muster.launch.templates import render_template
from muster.lifecycle.config import failover_allowed
from muster.rundir import RunPaths
from muster.runs.index import DEFAULT_RUNS_DIR
from muster.spec import JobSpec
from muster.spec.arrays import task_ids
from muster.spec.fields.groups import resolved
from muster.spec.fields.services import validate_scopes
from muster.spec.fields.spares import validate_segment

_ARRAY_TASK_VARIABLE = "SLURM_ARRAY_TASK_ID"


@dataclass(frozen=True)
class Prepared:
    """A planned run that has not been started. Its directory may not exist yet."""

    run: RunPaths
    spec: JobSpec
    target: Target
    python: str
    workdir: str
    script: str
    container: Container | None = None

    @property
    def step_nodes(self) -> int:
        """Number of nodes with an agent: those of the job and the spares."""
        return self.target.nodes + self.spec.spares

    @property
    def warnings(self) -> list[str]:
        """Warnings to show before the run starts."""
        warning = render.registry_warning(self.container, self.step_nodes) if self.container else None
        return [warning] if warning else []


def runs_dir(spec: JobSpec, cwd: Path) -> Path:
    """Return the directory of all runs: --runs-dir, else $MUSTER_RUNS_DIR, else ./muster-runs."""
    chosen = spec.runs_dir or os.environ.get("MUSTER_RUNS_DIR") or DEFAULT_RUNS_DIR
    return (cwd / Path(chosen).expanduser()).resolve()


def new_run_id(name: str) -> str:
    """Return <name>-<utc>-<4 hex>: sorted by time, safe in paths and shells, known before the job is submitted."""
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "run"
    return f"{slug}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def plan_run(spec: JobSpec, target: Target, cwd: Path) -> Prepared:
    """Return the run of this job; raise Mistake if the job cannot run on the target."""
    requeue.check_requeue_options(spec, target)
    python = choose_python(spec, os.environ, cwd)
    workdir = str((cwd / Path(spec.workdir or ".").expanduser()).resolve())
    for kind, path in (("working", workdir), ("runs", str(runs_dir(spec, cwd)))):
        if not path.isprintable():
            raise Mistake(f"the name of the {kind} directory has a control character: {path!r}")
    if not os.path.isdir(workdir):
        raise Mistake(f"--workdir {spec.workdir}: no such directory")
    if (spec.dedicated_head or spec.dedicated_head_cpus) and min(spec.fewest_nodes, target.nodes) < 2:
        flag = "--dedicated-head" if spec.dedicated_head else "--dedicated-head-cpus"
        raise Mistake(f"{flag}: one node is not enough, because the head runs no work; use --nodes 2 or more")
    try:
        validate_segment(target.nodes, spec.segment)
        validate_scopes(spec.services, target.nodes)
    except ValueError as error:
        raise Mistake(str(error)) from None
    run = RunPaths(str(runs_dir(spec, cwd) / new_run_id(spec.name)))
    spec = spec.model_copy(update={"nodes": target.nodes})
    container = container_of(spec, target, workdir, str(runs_dir(spec, cwd)), cwd)
    refuse_exposed(spec)
    script = job_script.render(
        run.root,
        run.run_id,
        job_script.PreludeArguments(python, spec.setup or "", spec.health_check or ""),
        _in_container(_launcher(spec, target), container, run.run_id, target.nodes + spec.spares),
        _directives(spec, target, run, workdir),
        requeue.requeue_code(spec) if target.kind == "sbatch" else requeue.NO_REQUEUE,
        task=_ARRAY_TASK_VARIABLE if spec.array is not None else "",
        surplus=spec.has_surplus,
        succession=failover_allowed(target.nodes + spec.spares, spec.on_node_loss, spec.max_restarts),
    )
    return Prepared(run, spec, target, python, workdir, script, container)


def _launcher(spec: JobSpec, target: Target) -> job_script.Launcher:
    nodes = target.nodes + spec.spares
    if target.backend == "slurm":
        submitted = target.kind == "sbatch"
        known_later = submitted and spec.fewest_nodes < spec.nodes  # Slurm chooses a number of this range
        attempt = requeue.NEXT_ATTEMPT if submitted else "0"
        step = (
            hetjob.step(resolved(spec), attempt)
            if spec.groups
            else slurm_directives.step(None if known_later else nodes, spec.cpus_per_node, attempt)
        )
        return replace(step, prepare=f"{step.prepare}\n{render_template('record_job.sh')}") if submitted else step
    words = [quote(sys.executable), quote(local_launcher.__file__), str(nodes)]
    hosts = " ".join(local_launcher.host_name(node_index) for node_index in range(nodes))
    prepare = f"printf '%s\\n' {hosts} >\"$attempt/hosts\""
    return job_script.Launcher("local", words, local_launcher.RANK_VARIABLE, local_launcher.HOST_VARIABLE, prepare)


def _add_to_each_group(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Add srun flags to every group of a hetjob: each has separate options, and colons separate the groups."""
    return [word for before in words for word in ([*flags, before] if before == ":" else [before])] + list(flags)


def _in_container(
    launcher: job_script.Launcher, container: Container | None, run_id: str, nodes: int
) -> job_script.Launcher:
    """Return the launcher with its tasks in the container, if there is one."""
    if container is None:
        return launcher
    heartbeat = job_script.heartbeat(launcher.rank_variable)
    added = render.wrap_step(container, run_id, launcher.host_variable, nodes, heartbeat)
    return replace(
        launcher,
        words=[*_add_to_each_group(launcher.words, added.srun_flags), *added.prefix],
        shell=[quote(word) for word in render.SHELL],
        prepare="\n".join(filter(None, [launcher.prepare, added.prepare])),
        cleanup=added.cleanup,
    )


def _directives(spec: JobSpec, target: Target, run: RunPaths, workdir: str) -> list[str]:
    if target.kind != "sbatch":
        return []
    if spec.groups:
        return hetjob.directives(spec, run.root, workdir)
    return slurm_directives.directives(spec, run.root, workdir)


def script_options(prepared: Prepared) -> set[str]:
    """Return the names of the sbatch options in the run's job script."""
    spec, root, workdir = prepared.spec, prepared.run.root, prepared.workdir
    blocks = hetjob.options(spec, root, workdir) if spec.groups else [slurm_directives.options(spec, root, workdir)]
    return {name for block in blocks for name in block}


def array_runs(prepared: Prepared) -> list[Prepared]:
    """Return one run per task of the job's array, or the run itself."""
    if prepared.spec.array is None:
        return [prepared]
    runs = (RunPaths(f"{prepared.run.root}-{number}") for number in task_ids(prepared.spec.array))
    return [replace(prepared, run=run) for run in runs]


def task_job_id(prepared: Prepared, job_id: str) -> str:
    """Return Slurm's id for this run's task of the submitted job: `17_3` for task 3 of array 17."""
    return job_id if prepared.spec.array is None else f"{job_id}_{prepared.run.run_id.rpartition('-')[2]}"
