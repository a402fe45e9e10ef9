"""`muster nodes`: list nodes that have failed, and forgive them."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from muster.cli.command_group import CommandGroup
from muster.cli.json_output import json_option, print_json
from muster.cli.output import print_table
from muster.cli.run_argument import resolve_run, runs_dir_option
from muster.rundir.node_evidence import BAD_SCORE, Evidence, by_host, score
from muster.rundir.node_memory import NodeMemory, run_evidence
from muster.spec import load_job

PIPE_WIDTH = 250
REASON_WIDTH = 80

memory_option = click.option(
    "--node-memory",
    metavar="DIR",
    help="Directory of the memory. Default: the setting node_memory of the user or the site.",
)


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--bad", is_flag=True, help="Only nodes that runs avoid.")
@click.option(
    "--run", "run_name", metavar="RUN", help="Run whose records are listed. Default: all records in the memory."
)
@json_option("Print one JSON list.")
@memory_option
@runs_dir_option
@click.pass_context
def nodes(
    context: click.Context,
    bad: bool,
    run_name: str | None,
    as_json: bool,
    node_memory: str | None,
    runs_dir: Path | None,
) -> None:
    """List nodes that have failed, with the evidence; runs avoid those with a score of 0.5 or more.

    The score halves every day. `muster nodes forgive HOST...` resets it.
    """
    context.obj = node_memory
    if context.invoked_subcommand is not None:
        return
    if run_name is not None:
        evidence = run_evidence(resolve_run(run_name, runs_dir))
    else:
        evidence = _memory(node_memory).evidence()
    now = time.time()
    hosts = {host: own for host, own in by_host(evidence).items() if not bad or score(own, now) >= BAD_SCORE}
    if as_json:
        print_json([_record(host, own, now) for host, own in sorted(hosts.items())])
    elif hosts:
        rows = [_row(host, own, now) for host, own in sorted(hosts.items())]
        print_table(("node", "score", "bad", "failures", "last", "reason"), rows, pipe_width=PIPE_WIDTH)
    else:
        click.echo("no node is bad" if bad else "no node has failed", err=True)


@nodes.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@memory_option
@json_option("Print one JSON object.")
@click.pass_context
def forgive(context: click.Context, hosts: tuple[str, ...], node_memory: str | None, as_json: bool) -> None:
    """Reset the score of these nodes: their earlier failures no longer count."""
    memory = _memory(node_memory or context.obj)
    known = by_host(memory.evidence())
    forgiven, unknown = [host for host in hosts if host in known], [host for host in hosts if host not in known]
    for host in unknown:
        click.echo(f"muster: nothing is recorded of {host}", err=True)
    try:
        memory.forgive(forgiven)
    except OSError as error:
        raise click.ClickException(f"{memory.directory} cannot be written: {error.strerror}") from error
    if as_json:
        print_json({"forgiven": forgiven, "unknown": unknown})


def _memory(directory: str | None) -> NodeMemory:
    """Return the memory of the option, else of the settings."""
    chosen = directory or load_job(None, {"command": ["true"]}).node_memory
    if chosen is None:
        raise click.UsageError(
            "there is no memory of nodes: set node_memory in the user's or site's settings, or give --node-memory DIR; "
            "--run RUN shows what one run has recorded"
        )
    return NodeMemory(chosen)


def _row(host: str, own: list[Evidence], now: float) -> list[str]:
    value, last = score(own, now), own[-1]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(last.time))
    bad = "yes" if value >= BAD_SCORE else "no"
    return [host, f"{value:.2f}", bad, str(len(own)), when, f"{last.kind}: {last.reason}"[:REASON_WIDTH]]


def _record(host: str, own: list[Evidence], now: float) -> dict[str, object]:
    value = score(own, now)
    return {"host": host, "score": value, "bad": value >= BAD_SCORE, "evidence": [asdict(one) for one in own]}
