"""Making a run directory: everything the nodes need, written before anything is submitted."""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from muster.errors import BackendError, Mistake
from muster.launch import hetjob, job_array, job_script, local_launcher, requeue, slurm_directives
from muster.launch.agent_archive import build_archive
from muster.launch.containers import render
from muster.launch.containers.discover import container_of
from muster.launch.containers.render import Container
from muster.launch.driver_library import build_library
from muster.launch.secret_check import refuse_exposed
from muster.launch.target import Target, choose_python
from muster.launch.templates import render_template
from muster.lifecycle.config import failover_allowed
from muster.rundir import RunPaths, write_atomic
from muster.rundir.redaction import redact_words
from muster.rundir.tokens import derive_ray_token
from muster.runs.index import DEFAULT_RUNS_DIR
from muster.slurm import client
from muster.spec import JobSpec
from muster.spec.fields.groups import resolved
from muster.spec.fields.services import validate_scopes
from muster.spec.fields.spares import validate_segment

PUBLIC = {"kind", "scope", "ports", "gate", "deadline", "restart", "max_restarts"}
"""What job.json tells of a service: what people look at, and nothing that may hold a secret."""

_archive = functools.lru_cache(maxsize=1)(build_archive)  # the runs of an array have the same
_library = functools.lru_cache(maxsize=1)(build_library)


@dataclass(frozen=True)
class Prepared:
    """A run that has a directory (or would have, for --dry-run) but has not been started."""

    run: RunPaths
    spec: JobSpec
    place: Target
    python: str
    workdir: str
    script: str
    container: Container | None = None

    @property
    def step_nodes(self) -> int:
        """Nodes on which an agent runs."""
        return self.place.nodes + self.spec.spares

    @property
    def warnings(self) -> list[str]:
        """What is worth saying before the run begins, although it can begin."""
        warning = render.registry_warning(self.container, self.step_nodes) if self.container else None
        return [warning] if warning else []


def runs_dir(spec: JobSpec, cwd: Path) -> Path:
    chosen = spec.runs_dir or os.environ.get("MUSTER_RUNS_DIR") or DEFAULT_RUNS_DIR
    return (cwd / Path(chosen).expanduser()).resolve()


def new_run_id(name: str) -> str:
    """<name>-<utc>-<4 hex>: sorts by time, safe in paths and shells, known before Slurm answers."""
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "run"
    return f"{slug}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def plan_run(spec: JobSpec, place: Target, cwd: Path) -> Prepared:
    """Decide everything, write nothing."""
    requeue.check_requeue_options(spec, place)
    python = choose_python(spec, os.environ, cwd)
    workdir = str((cwd / Path(spec.workdir or ".").expanduser()).resolve())
    for what, path in (("working", workdir), ("runs", str(runs_dir(spec, cwd)))):
        if not path.isprintable():
            raise Mistake(f"the {what} directory has a control character in its name: {path!r}")
    if not os.path.isdir(workdir):
        raise Mistake(f"--workdir {spec.workdir}: no such directory")
    if spec.dedicated_head and place.nodes < 2:
        raise Mistake("--dedicated-head: with one node there would be none for the work; use --nodes 2 or more")
    try:
        validate_segment(place.nodes, spec.segment)
        validate_scopes(spec.services, place.nodes)
    except ValueError as error:
        raise Mistake(str(error)) from None
    run = RunPaths(str(runs_dir(spec, cwd) / new_run_id(spec.name)))
    spec = spec.model_copy(update={"nodes": place.nodes})
    inside = container_of(spec, place, workdir, str(runs_dir(spec, cwd)), cwd)
    refuse_exposed(spec)
    text = job_script.render(
        run.root,
        run.run_id,
        job_script.PreludeArguments(python, spec.setup or "", spec.health_check or ""),
        _contained(_launcher(spec, place), inside, run.run_id, place.nodes + spec.spares),
        _directives(spec, place, run, workdir),
        requeue.requeue_code(spec) if place.kind == "sbatch" else requeue.NO_REQUEUE,
        task=job_array.TASK if spec.array is not None else "",
        spares=spec.spares,
        succession=failover_allowed(place.nodes + spec.spares, spec.on_node_loss, spec.max_restarts),
    )
    return Prepared(run, spec, place, python, workdir, text, inside)


def _launcher(spec: JobSpec, place: Target) -> job_script.Launcher:
    nodes = place.nodes + spec.spares
    if place.backend == "slurm":
        own = place.kind == "sbatch"
        attempt = requeue.NEXT_ATTEMPT if own else "0"
        step = (
            hetjob.step(resolved(spec), attempt)
            if spec.groups
            else slurm_directives.step(nodes, spec.cpus_per_node, attempt)
        )
        return replace(step, prepare=f"{step.prepare}\n{render_template('record_job.sh')}") if own else step
    words = [quote(sys.executable), quote(local_launcher.__file__), str(nodes)]
    hosts = " ".join(local_launcher.host_name(rank) for rank in range(nodes))
    prepare = f"printf '%s\\n' {hosts} >\"$attempt/hosts\""
    return job_script.Launcher("local", words, local_launcher.RANK_VARIABLE, local_launcher.HOST_VARIABLE, prepare)


def _for_each_group(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """srun takes the options of each group of nodes apart, with a colon between them."""
    return [word for before in words for word in ([*flags, before] if before == ":" else [before])]


def _contained(launcher: job_script.Launcher, inside: Container | None, run_id: str, nodes: int) -> job_script.Launcher:
    """The same launcher, its tasks in the container."""
    if inside is None:
        return launcher
    heartbeat = job_script.heartbeat(launcher.rank_variable)
    added = render.wrap(inside, run_id, launcher.host_variable, nodes, heartbeat)
    return replace(
        launcher,
        words=[*_for_each_group(launcher.words, added.srun_flags), *added.srun_flags, *added.prefix],
        shell=[quote(word) for word in render.SHELL],
        prepare="\n".join(filter(None, [launcher.prepare, added.prepare])),
        cleanup=added.cleanup,
    )


def _directives(spec: JobSpec, place: Target, run: RunPaths, workdir: str) -> list[str]:
    if place.kind != "sbatch":
        return []
    if spec.groups:
        return hetjob.directives(spec, run.root, workdir)
    return slurm_directives.directives(spec, run.root, workdir)


def option_names(prepared: Prepared) -> set[str]:
    """The sbatch options that the script of a submitted run has."""
    spec, root, workdir = prepared.spec, prepared.run.root, prepared.workdir
    blocks = hetjob.options(spec, root, workdir) if spec.groups else [slurm_directives.options(spec, root, workdir)]
    return {name for block in blocks for name in block}


def write_run(prepared: Prepared) -> None:
    """Write the run directory whole, or leave nothing of it."""
    run, spec = prepared.run, prepared.spec
    try:
        os.makedirs(run.output_dir)
    except OSError as error:
        raise BackendError(
            f"the runs directory {os.path.dirname(run.root)} cannot be written: {error.strerror}"
        ) from error
    try:
        token = secrets.token_hex(32)
        write_atomic(run.token, token, mode=0o600)
        write_atomic(run.ray_token, derive_ray_token(token.encode()).decode(), mode=0o600)
        write_atomic(run.env, json.dumps(spec.env), mode=0o600)
        if spec.services:
            write_atomic(run.services, json.dumps(_services_record(spec)) + "\n", mode=0o600)
        hides = redact_words(spec.command) != spec.command
        write_atomic(run.job, json.dumps(_job_record(prepared)) + "\n", mode=0o600 if hides else 0o644)
        write_atomic(run.script, prepared.script, mode=0o755)
        python = sys.executable if prepared.container else prepared.python
        sandbox = any(service.kind == "sandbox" for service in spec.services.values())
        Path(run.agent).write_bytes(_archive(python, sandbox))
        Path(run.library).write_bytes(_library(python, sandbox))
    except BaseException:
        shutil.rmtree(run.root, ignore_errors=True)
        raise


def _signal_times(spec: JobSpec, place: Target) -> dict[str, float | None]:
    """What the driver may take when Slurm ends the job: the larger part of KillWait, the nodes need the rest."""
    if place.backend != "slurm":
        return {"signal_grace": spec.stop_grace, "kill_wait": None}
    kill_wait = client.kill_wait()
    return {"signal_grace": min(spec.stop_grace, 0.6 * kill_wait), "kill_wait": kill_wait}


def _job_record(prepared: Prepared) -> dict[str, object]:
    """The resolved job: what agents act on and people look at. Values of --env may be secrets: names only."""
    spec, place = prepared.spec, prepared.place
    cpus = spec.cpus_per_node
    if cpus is None and place.kind == "local":
        cpus = max(1, len(os.sched_getaffinity(0)) // place.nodes)
    with_cpus = spec.model_copy(update={"cpus_per_node": cpus})
    return {
        **spec.model_dump(mode="json"),
        "env": sorted(spec.env),
        "run": prepared.run.run_id,
        "backend": place.backend,
        "python": prepared.python,
        "workdir": prepared.container.workdir if prepared.container else prepared.workdir,
        "container": prepared.container.record() if prepared.container else None,
        "cpus_per_node": cpus,
        **_signal_times(spec, place),
        "groups": [group.model_dump(mode="json") for group in resolved(with_cpus)],
        "services": {
            name: {**service.model_dump(mode="json", include=PUBLIC), "env": sorted(service.env)}
            for name, service in spec.services.items()
        },
    }


def _services_record(spec: JobSpec) -> dict[str, object]:
    """All that the agents must know of the services; for the user's eyes alone."""
    return {name: service.model_dump(mode="json") for name, service in spec.services.items()}
