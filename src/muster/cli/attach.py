"""`muster attach`: open a shell on a node of a running cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from muster.cli.node_entry import NodeCommand, entry_for, exec_on_node, node_command, node_options


@click.command(cls=NodeCommand)
@node_options
@click.pass_context
def attach(ctx: click.Context, run: str | None, node: str | None, runs_dir: Path | None) -> NoReturn:
    """Open a shell, or run COMMAND, on a node of RUN (default: the only live one), with its driver's environment.

    `ray.init()` connects to the cluster. Under Slurm the shell is a further step of the job, which overlaps the
    others. Leaving the shell does not change the cluster.
    """
    entry, command = entry_for(run, node, runs_dir), node_command(ctx)
    pty = sys.stdin.isatty() and sys.stdout.isatty()
    if pty and not command:
        click.echo(
            f"{entry.run.run_id}, node {entry.node.node_index} on {entry.node.host}: leave with `exit`", err=True
        )
    exec_on_node(entry, command, pty)
