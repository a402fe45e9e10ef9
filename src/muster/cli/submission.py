"""Errors, warnings and exit codes shared by the commands that submit a job (run, up)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import click

from muster.doctor import preflight
from muster.errors import BackendError, Mistake
from muster.exit_codes import INFRASTRUCTURE_FAILED, INTERRUPTED
from muster.launch.plan import Prepared
from muster.process import SpawnError

DETACHED_BY_INTERRUPT = INTERRUPTED  # although the job continues


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
    for warning in [*prepared.warnings, *preflight.warnings(prepared, os.environ)]:
        click.echo(f"muster: warning: {warning}", err=True)
