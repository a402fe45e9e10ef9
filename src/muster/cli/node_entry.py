"""Options and functions of the commands that act on a node of a running cluster (attach, exec, ps, reap, tunnel)."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from muster.cli.run_argument import run_argument, run_errors, runs_dir_option
from muster.launch.containers.render import Container
from muster.launch.exec_step import ExecStep, TargetNode, session_environment
from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.rundir.node_groups import group_of, groups_of
from muster.rundir.records import read_submission
from muster.runs.lookup import live_run, running_attempt

_COMMAND = "muster.command"


class NodeCommand(click.Command):
    """A command whose arguments after `--` are a command for the node; `node_command` returns them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]" if self.name == "attach" else "-- COMMAND..."]


def node_command(ctx: click.Context) -> list[str]:
    command: list[str] = ctx.meta[_COMMAND]
    return command


def node_options(function: Any) -> Any:
    """Add RUN, --node and --runs-dir."""
    node = click.option("--node", metavar="N|HOST", help="Node, by node index or host name. Default: the head, node 0.")
    for decorate in (run_argument, node, runs_dir_option):
        function = decorate(function)
    return function


def entry_for(name: str | None, node: str | None, runs_dir: Path | None) -> ExecStep:
    """Return how to enter a node of a running run; exit with the reason if it cannot be entered now."""
    with run_errors():
        run = live_run(name, runs_dir)
        attempt, status = running_attempt(run)
    submission = read_submission(run)
    if status["backend"] == "local" and submission.host != socket.gethostname():
        where = f"{run.run_id} runs on {submission.host}, not on this machine"
        raise click.ClickException(f"{where}: run this command there")
    attempt_job = read_record(attempt.slurm_job).get("job_id")  # in a chain of jobs, the one that runs now
    job_id = None if status["backend"] == "local" else attempt_job or status["job_id"]
    address = (status.get("ray") or {}).get("address")
    record = read_record(run.job).get("container")
    container = Container.from_record(record) if record else None
    target = find_node(node, run, attempt, status)
    return ExecStep(run, attempt, target, job_id, status["cycle"] or 0, address, container, submission.cluster)


def find_node(name: str | None, run: RunPaths, attempt: AttemptPaths, status: dict[str, Any]) -> TargetNode:
    """Return the node with this index or host name, or the head for None; raise UsageError if there is no such node."""
    wanted = str(status.get("lead", 0)) if name is None else name
    for known in status["nodes"]:
        if wanted in (str(known["rank"]), known["host"], known["host"].partition(".")[0]):
            record = read_record(attempt.node_record(known["rank"]))
            python, pid = record.get("python") or "python3", record.get("pid") or 0
            return TargetNode(known["rank"], known["host"], python, pid, _group_index(run, known["rank"]))
    hosts = [known["host"] for known in status["nodes"]]
    raise click.UsageError(f"--node {name}: {run.run_id} has nodes 0 to {len(hosts) - 1}: {', '.join(hosts[:8])}")


def _group_index(run: RunPaths, node_index: int) -> int | None:
    """Return the index of the node's group in a heterogeneous job, None in any other."""
    groups = groups_of(read_record(run.job).get("groups") or [])
    group = group_of(node_index, groups)
    return groups.index(group) if group is not None and len(groups) > 1 else None


def exec_on_node(entry: ExecStep, command: list[str], pty: bool) -> NoReturn:
    """Replace this process by the command on the node, which so gets signals and terminal and sets the exit code."""
    argv = entry.command(pty)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, session_environment(os.environ, command))
    except OSError as error:
        raise cannot_start(argv[0], error) from error


def cannot_start(program: str, error: OSError) -> click.ClickException:
    """Return the error about a program on this host (srun, a container's) with which a node is entered."""
    return click.ClickException(
        f"{program} could not be run on {socket.gethostname()}: {error.strerror}; "
        "run this command on a host where it is installed"
    )
