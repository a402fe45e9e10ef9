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
from muster.cli.options import GroupedOption
from muster.doctor import preflight
from muster.errors import BackendError, Mistake
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.launch.plan import Prepared
from muster.process import SpawnError
from muster.spec import JobSpec, SpecError, load_job
from muster.spec.ray_sub import NO_COMMAND, as_arguments, ray_sub_job

R = TypeVar("R")

json_lines_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    cls=GroupedOption,
    group="Following",
    help="Print events, output and the result as JSON lines.",
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
    return load_job(file, _with_environment(flags) if from_env else flags)


def _with_environment(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags over the fields from ray.sub's variables; print a line for each variable without effect here."""
    found = ray_sub_job(os.environ, flags)
    for note in found.notes:
        click.echo(f"muster: --from-env: {note}", err=True)
    if "command" not in found.fields and "command" not in flags:
        raise SpecError([NO_COMMAND])
    click.echo(f"muster: --from-env adds: {shlex.join(as_arguments(found.fields))}", err=True)
    return {**found.fields, **flags, "env": {**found.fields["env"], **flags.get("env", {})}}


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


def print_warnings(prepared: Prepared) -> None:
    """Print the warnings about a job before it waits in the queue."""
    stdin = [STDIN_WARNING] if has_input() else []
    for warning in [*prepared.warnings, *preflight.warnings(prepared, os.environ), *stdin]:
        click.echo(f"muster: warning: {warning}", err=True)
