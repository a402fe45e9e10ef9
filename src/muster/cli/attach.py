"""`muster attach` and `muster exec`: a shell or a command on a node of a running cluster."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from muster.launch.containers.render import Container
from muster.launch.exec_step import Entry, TargetNode, session_environment
from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.rundir.node_groups import group_of, groups_of
from muster.runs.index import NoSuchRun
from muster.runs.lookup import NotRunning, live_run, running_attempt

_COMMAND = "muster.command"


class EnterCommand(click.Command):
    """A command whose last part, after `--`, is a command for the node."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]" if self.name == "attach" else "-- COMMAND..."]


def _options(function: Any) -> Any:
    for decorate in (
        click.argument("run", required=False),
        click.option("--node", metavar="N|HOST", help="The node with this rank or name. Default: the head, rank 0."),
        click.option("--runs-dir", type=click.Path(path_type=Path), help="Look for runs in this directory only."),
    ):
        function = decorate(function)
    return function


@click.command(cls=EnterCommand)
@_options
@click.pass_context
def attach(ctx: click.Context, run: str | None, node: str | None, runs_dir: Path | None) -> NoReturn:
    """Open a shell, or run COMMAND, on a node of RUN (default: the only live one), with its driver's environment.

    `ray.init()` finds the cluster there. Under Slurm this is one further step of the job's, beside those that run.
    Leaving the shell leaves the cluster as it is.
    """
    entry, words = entry_for(run, node, runs_dir), ctx.meta[_COMMAND]
    pty = sys.stdin.isatty() and sys.stdout.isatty()
    if pty and not words:
        click.echo(f"{entry.run.run_id}, rank {entry.node.rank} on {entry.node.host}: leave with `exit`", err=True)
    _become(entry, words, pty)


@click.command(name="exec", cls=EnterCommand)
@_options
@click.pass_context
def exec_(ctx: click.Context, run: str | None, node: str | None, runs_dir: Path | None) -> NoReturn:
    """Run COMMAND on a node of RUN (default: the only live one), with its driver's environment; exit with its code.

    For scripts: never a terminal, its output and its errors apart.
    """
    if not ctx.meta[_COMMAND]:
        raise click.UsageError("nothing to run: give COMMAND after --")
    _become(entry_for(run, node, runs_dir), ctx.meta[_COMMAND], pty=False)


def entry_for(name: str | None, node: str | None, runs_dir: Path | None) -> Entry:
    """The way to a node of a run that can be used now; the user is told why there is none."""
    try:
        run = live_run(name, runs_dir)
        attempt, status = running_attempt(run)
    except (NoSuchRun, NotRunning) as error:
        raise click.ClickException(str(error)) from error
    submission = read_record(run.submission)
    if status["backend"] == "local" and submission.get("host") != socket.gethostname():
        raise click.ClickException(f"{run.run_id} runs on {submission.get('host')}, not here: use it there")
    own = read_record(attempt.slurm_job).get("job_id")  # of a chain the one that runs now
    job_id = None if status["backend"] == "local" else own or status["job_id"]
    address = (status.get("ray") or {}).get("address")
    record = read_record(run.job).get("container")
    inside = Container.from_record(record) if record else None
    found = node_named(node, run, attempt, status)
    return Entry(run, attempt, found, job_id, status["cycle"] or 0, address, inside, submission.get("cluster"))


def node_named(name: str | None, run: RunPaths, attempt: AttemptPaths, status: dict[str, Any]) -> TargetNode:
    """By rank, or by its host's name; the head when none is named."""
    wanted = str(status.get("lead", 0)) if name is None else name
    for known in status["nodes"]:
        if wanted in (str(known["rank"]), known["host"], known["host"].partition(".")[0]):
            record = read_record(attempt.node_record(known["rank"]))
            python, pid = record.get("python") or "python3", record.get("pid") or 0
            return TargetNode(known["rank"], known["host"], python, pid, _group(run, known["rank"]))
    hosts = [known["host"] for known in status["nodes"]]
    raise click.UsageError(f"--node {name}: {run.run_id} has ranks 0 to {len(hosts) - 1}: {', '.join(hosts[:8])}")


def _group(run: RunPaths, rank: int) -> int | None:
    """The number of the node's group, where Slurm knows the job as several."""
    groups = groups_of(read_record(run.job).get("groups") or [])
    group = group_of(rank, groups)
    return groups.index(group) if group is not None and len(groups) > 1 else None


def _become(entry: Entry, words: list[str], pty: bool) -> NoReturn:
    """This process becomes it: signals, terminal and exit code are its own."""
    argv = entry.command(pty)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, session_environment(os.environ, words))
    except OSError as error:
        raise click.ClickException(f"{argv[0]} could not be run: {error.strerror}") from error
