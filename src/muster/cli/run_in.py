"""`muster run --in RUN`: run a guest session, a further driver on a running cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import click

from muster.cli.output import write_output
from muster.cli.run_argument import run_errors
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.runs.guests import Guest, GuestLost
from muster.runs.lookup import live_run, running_attempt
from muster.spec import load_job
from muster.spec.flags import long_flag

_ALLOWED_FIELDS = ("command", "env", "workdir", "runs_dir")


def run_in(name: str, flags: dict[str, Any], detach: bool, refused: list[str]) -> int:
    """Request a guest session on the run `name`; unless `detach`, follow it and return its exit code."""
    refused = [*refused, *(long_flag(field) for field in flags if field not in _ALLOWED_FIELDS)]
    if refused:
        raise click.UsageError(
            f"{', '.join(refused)}: not with --in, which uses a cluster as it is; "
            "--env, --workdir, --runs-dir and --detach are allowed"
        )
    spec = load_job(None, flags)
    workdir = os.path.realpath(os.path.expanduser(spec.workdir or "."))
    if not os.path.isdir(workdir):
        raise click.UsageError(f"--workdir {spec.workdir}: no such directory")
    with run_errors():
        run = live_run(name, Path(spec.runs_dir) if spec.runs_dir else None)
        attempt, _ = running_attempt(run)
    guest = Guest(run, attempt)
    guest.request(spec.command, spec.env, workdir)
    if detach:
        click.echo(f"guest {guest.id} of {run.run_id}; its output goes to {guest.log}", err=True)
        click.echo(f"{run.run_id}\t{guest.id}")
        return 0
    return _follow(guest)


def _follow(guest: Guest) -> int:
    """Follow the guest; a signal to this process ends the guest, not the cluster; a second interrupt does not wait."""

    def stop(signum: int, frame: object) -> None:
        guest.stop()  # first, because printing fails when the terminal is gone
        signal.signal(signal.SIGINT, signal.default_int_handler)
        click.echo(f"received {signal.Signals(signum).name}: ending the guest; the cluster continues", err=True)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, stop)
    try:
        return guest.follow(write_output)
    except GuestLost as error:
        click.echo(f"muster: error: {error}", err=True)
        return INFRASTRUCTURE_FAILED
