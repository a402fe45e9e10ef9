"""`muster reap`: end programs of `muster.placement` that have no owner."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from muster.cli.json_output import json_option, print_json
from muster.cli.node_entry import entry_for
from muster.cli.placement_inventory import print_placement, query_placement
from muster.cli.run_argument import run_argument, runs_dir_option
from muster.cli.units import time_value


@click.command()
@run_argument
@runs_dir_option
@click.option(
    "--stop-grace",
    callback=time_value,
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Time between SIGTERM and SIGKILL, in seconds or as 1m.",
)
@click.option("--grace", "old_grace", callback=time_value, hidden=True)  # the earlier name
@click.option("--dry-run", is_flag=True, help="Only list what would be ended.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option("Print one JSON object; needs --yes or --dry-run.")
def reap(
    run: str | None,
    runs_dir: Path | None,
    stop_grace: float,
    old_grace: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """End the programs without an owner on the Ray cluster of RUN (default: the only live one).

    \b
    a server of Replicas     its name was released or claimed again, or the process that claimed it is gone
    any other program        the process that started it, or attached to it later, is gone

    The programs get SIGTERM and, after the grace period, SIGKILL, with all their descendants; then their placement
    groups are removed. Programs that have an owner, or may have one, are never touched.
    `muster programs` lists everything.
    """
    if not (yes or dry_run) and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("cannot ask for confirmation here: give --yes, or --dry-run to only list")
    entry = entry_for(run, None, runs_dir)
    if not yes:
        ownerless = _without_owner(query_placement(entry, "list"))
        if not _confirmed(ownerless, dry_run, as_json):
            return 0
    ended = query_placement(entry, "reap", str(stop_grace if old_grace is None else old_grace))
    if as_json:
        print_json(ended)
    else:
        click.echo(f"ended: {_names(ended) or 'nothing was without an owner'}")
    for name in ended["silent"]:
        click.echo(f"muster: {name} did not answer; its actor was killed, which ends its program", err=True)
    return 0


def _confirmed(ownerless: dict[str, Any], dry_run: bool, as_json: bool) -> bool:
    """Print what would be ended and return whether the user confirms it."""
    if as_json:
        print_json(ownerless)
        return False
    if not ownerless["programs"] and not ownerless["groups"]:
        click.echo("nothing is without an owner")
        return False
    print_placement(ownerless["programs"], ownerless["groups"])
    return not dry_run and click.confirm("End all of this?")


def _without_owner(found: dict[str, Any]) -> dict[str, Any]:
    return {kind: [each for each in listed if each["owned"] is False] for kind, listed in found.items()}


def _names(ended: dict[str, Any]) -> str:
    groups = [f"group {group['name']}" for group in ended["groups"]]
    return ", ".join([*(program["name"] for program in ended["programs"]), *groups])
