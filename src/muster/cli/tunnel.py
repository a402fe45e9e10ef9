"""`muster tunnel`: forward a local port, through the login node, to a port of a run's node."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import click

from muster.cli.json_output import json_option, print_json
from muster.cli.node_entry import find_node
from muster.cli.run_argument import run_errors, runs_dir_option
from muster.rundir import RunPaths
from muster.runs.index import NoSuchRun, find_run
from muster.runs.lookup import live_run, running_attempt
from muster.runs.tunnels import Tunnel, this_host

DASHBOARD = "dashboard"


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN] [dashboard|PORT|SERVICE]")
@click.option("--node", metavar="N|HOST", help="Node of PORT, by node index or host name. Default: the head.")
@click.option(
    "--local-port", type=click.IntRange(1, 65535), metavar="PORT", help="Local port. Default: the remote port."
)
@click.option("--login", metavar="[USER@]HOST", help="Login node, as your machine reaches it. Default: this host.")
@click.option("--print", "only_print", is_flag=True, help="Print the ssh command; the default without a terminal.")
@json_option("Print the address and the ssh command as one JSON object.")
@runs_dir_option
def tunnel(
    words: tuple[str, ...],
    node: str | None,
    local_port: int | None,
    login: str | None,
    only_print: bool,
    as_json: bool,
    runs_dir: Path | None,
) -> int:
    """Open, or print, an ssh tunnel to Ray's dashboard, a service or a port of RUN (default: the only live one).

    A printed command is for your own machine and goes through the login node. An opened tunnel listens on this host,
    where every user can connect: prefer --print on a shared login node.
    """
    with run_errors():
        run, what = _run_and_target(words, runs_dir)
        attempt, status = running_attempt(run)
    leader = find_node(node, run, attempt, status).host
    target = _target(what, leader, status)
    local = status["backend"] == "local"
    port = target.port if local else local_port or target.port
    ssh = [] if local else target.ssh(port, login or f"{getpass.getuser()}@{this_host()}")
    if as_json:
        print_json({"run": run.run_id, **asdict(target), "url": f"http://127.0.0.1:{port}", "command": ssh or None})
        return 0
    if local:
        click.echo(f"http://127.0.0.1:{target.port}")
        return 0
    if only_print or not sys.stdin.isatty():
        click.echo(shlex.join(ssh))
        return 0
    click.echo(f"http://127.0.0.1:{port} on this host, until you interrupt it", err=True)
    argv = target.ssh(port, login)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        raise click.ClickException(
            f"ssh could not be run: {error.strerror}; the command: {shlex.join(argv)}"
        ) from error


def _run_and_target(words: tuple[str, ...], runs_dir: Path | None) -> tuple[RunPaths, str]:
    """Return the run and the target; a single word is a run if one has that id or job id, else a target."""
    if len(words) > 2:
        raise click.UsageError("give at most two arguments: RUN, and dashboard, a port or a service")
    if len(words) == 2:
        return find_run(words[0], runs_dir), words[1]
    if words and words[0] != DASHBOARD:
        try:
            return find_run(words[0], runs_dir), DASHBOARD
        except NoSuchRun:
            return live_run(None, runs_dir), words[0]
    return live_run(None, runs_dir), DASHBOARD


def _target(what: str, leader: str, status: dict[str, Any]) -> Tunnel:
    if what == DASHBOARD:
        at = (status.get("ray") or {}).get("dashboard") or {}
        if "port" not in at:
            raise click.ClickException(f"{status['run']} was started without --dashboard")
        return Tunnel(at.get("host") or leader, int(at["port"]))
    if what.isdigit():
        if not 1 <= int(what) <= 65535:
            raise click.ClickException(f"{what} is not a port: ports range from 1 to 65535")
        return Tunnel(leader, int(what))
    services = cast("dict[str, dict[str, Any]]", status.get("services") or {})
    if what not in services:
        known = f"its services are {', '.join(services)}" if services else "it has no services"
        raise click.ClickException(
            f"{what!r} is not a service of {status['run']} ({known}): give dashboard, a service or a port"
        )
    ready = [one for one in services[what]["instances"] if one["state"] == "ready" and one["url"]]
    if not ready:
        raise click.ClickException(f"service {what} of {status['run']} has no endpoint now; see muster status")
    first = next((one for one in ready if one["host"] == leader), ready[0])
    return Tunnel(first["host"], urlsplit(first["url"]).port or 80)
