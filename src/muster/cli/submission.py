"""Code shared by the commands that plan or submit a job (run, up, render): loading the job, errors and warnings."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from muster.cli.ignored_stdin import STDIN_WARNING, has_input
from muster.cli.json_output import json_option, print_json
from muster.cli.options import GroupedOption
from muster.doctor import preflight
from muster.errors import BackendError, Mistake
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.launch.plan import Prepared
from muster.launch.run_writer import job_record
from muster.process import SpawnError
from muster.rundir.redaction import redact_words, scrubbed
from muster.spec import JobSpec, SpecError, load_job
from muster.spec.ray_sub import NO_COMMAND, RaySubJob, as_arguments, ray_sub_job

R = TypeVar("R")

json_lines_option = json_option(
    "Print events, output and the result as JSON lines.", cls=GroupedOption, group="Following"
)


def from_env_option(function: Callable[..., R]) -> Callable[..., R]:
    return click.option(
        "--from-env",
        is_flag=True,
        cls=GroupedOption,
        group="Job",
        help="Take the job from ray.sub's variables (COMMAND, CONTAINER, MOUNTS, ...); the job's flags win.",
    )(function)


def load_submitted_job(file: Path | None, flags: dict[str, Any], from_env: bool) -> JobSpec:
    """Load the job from its file and the flags; with --from-env also from the variables of NeMo-RL's ray.sub."""
    _refuse_file_as_command(file, flags.get("command") or [])
    if not from_env:
        return load_job(file, flags)
    found = _ray_sub_job(flags)
    fields = {**found.fields, **flags}
    if "env" in found.fields:
        fields["env"] = {**found.fields["env"], **flags.get("env", {})}
    if "ray_start_arg" in found.fields:
        fields["ray_start_arg"] = [*found.fields["ray_start_arg"], *flags.get("ray_start_arg", [])]
    return load_job(file, fields, found.defaults)


def _refuse_file_as_command(file: Path | None, command: list[str]) -> None:
    """Raise SpecError for `muster run job.yaml`: a job file that is not executable cannot be the command."""
    if file is None and command and command[0].endswith((".yaml", ".yml")) and not os.access(command[0], os.X_OK):
        raise SpecError([f"{command[0]} is a job file, not a command; did you mean -f {command[0]}?"])


def _ray_sub_job(flags: dict[str, Any]) -> RaySubJob:
    """Return the job of ray.sub's variables; print it as flags, and a line for each variable without effect here."""
    found = ray_sub_job(os.environ, flags)
    for note in found.notes:
        click.echo(f"muster: --from-env: {note}", err=True)
    if "command" not in found.fields and "command" not in flags:
        raise SpecError([NO_COMMAND])
    click.echo(f"muster: --from-env adds: {shlex.join(as_arguments(found))}", err=True)
    return found


class InfrastructureFailed(click.ClickException):
    """The job could not be started, and COMMAND is not the reason."""

    exit_code = INFRASTRUCTURE_FAILED


@contextlib.contextmanager
def submission_errors() -> Iterator[None]:
    """Convert errors of the backends into exit codes: 2 for a mistake of the user, 125 for all others."""
    try:
        yield
    except Mistake as error:
        raise click.UsageError(str(error)) from error
    except (BackendError, SpawnError) as error:
        raise InfrastructureFailed(str(error)) from error


def print_plan(prepared: Prepared, as_json: bool) -> None:
    """Print what would be submitted: the script, and on stderr the command, which the script reads from job.json."""
    if as_json:
        print_json(plan_record(prepared))
        return
    nodes = f"{prepared.step_nodes} node{'s' * (prepared.step_nodes != 1)}"
    where = {"sbatch": f"submit a Slurm job of {nodes}", "allocation": f"use {nodes} of this allocation"}
    what = where.get(prepared.target.kind, f"use this machine as {nodes}")
    command = shlex.join(redact_words(prepared.spec.command))
    click.echo(f"muster: dry run; would {what}, with this script, and run: {command}", err=True)
    click.echo(prepared.script, nl=False)


def plan_record(prepared: Prepared) -> dict[str, Any]:
    """Return what would be submitted, as in JSON: `job` is job.json, without values that look like secrets."""
    return {
        "how": prepared.target.kind,
        "nodes": prepared.step_nodes,
        "run_dir": prepared.run.root,
        "job": {**scrubbed(job_record(prepared)), "command": redact_words(prepared.spec.command)},
        "script": prepared.script,
    }


def print_warnings(prepared: Prepared) -> None:
    """Print the warnings about a job before it waits in the queue."""
    stdin = [STDIN_WARNING] if has_input() else []
    for warning in [*prepared.warnings, *preflight.warnings(prepared, os.environ), *stdin]:
        click.echo(f"muster: warning: {warning}", err=True)
