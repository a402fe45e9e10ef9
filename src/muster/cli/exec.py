"""`muster exec`: run a command on a node of a running cluster, for scripts."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import click

from muster.cli.node_entry import NodeCommand, entry_for, exec_on_node, node_command, node_options


@click.command(name="exec", cls=NodeCommand)
@node_options
@click.pass_context
def exec_(ctx: click.Context, run: str | None, node: str | None, runs_dir: Path | None) -> NoReturn:
    """Run COMMAND on a node of RUN (default: the only live one), with its driver's environment; exit with its code.

    For scripts: it never allocates a terminal, and keeps stdout and stderr separate.
    """
    if not node_command(ctx):
        raise click.UsageError("no command given: write it after --")
    exec_on_node(entry_for(run, node, runs_dir), node_command(ctx), pty=False)
