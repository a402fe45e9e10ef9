"""`muster status`, `logs`, `stop` and `runs`: all from the run directory."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli import ray_logs
from muster.cli.run_argument import find, runs_dir_option
from muster.errors import BackendError
from muster.rundir import AttemptPaths, RunPaths, read_json
from muster.rundir.redaction import redact_words
from muster.runs.follow import Tail
from muster.runs.index import NoSuchRun, all_runs
from muster.runs.lookup import NoLiveRun, live_run
from muster.runs.monitor import RunMonitor, finalize_dead, record_silent_end
from muster.runs.next_attempt import next_attempt_message
from muster.runs.release import release_all
from muster.runs.status import ENDED_STATES, read_status
from muster.runs.stop import is_live, stop_reason, stop_run
from muster.slurm.jobs import SlurmJobs
from muster.views.hosts import folded
from muster.views.report import leave_report
from muster.views.sanitize import printable

WATCH_S = 0.5


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="The status as one JSON object.")
@click.option("--watch", is_flag=True, help="Show it again at every change, until the run has ended.")
@runs_dir_option
def status(run: str | None, as_json: bool, watch: bool, runs_dir: Path | None) -> None:
    """Show what RUN (a run id or job id; default: the newest) is doing, or how it ended."""
    paths, shown = find(run, runs_dir), None
    _tell_cancelled(paths, finalize_dead(paths))
    alive = RunMonitor(paths)
    while True:
        now = read_status(paths)
        text = json.dumps(now) if as_json else "\n".join(_status_lines(now))
        if text != shown:
            click.echo(text)
        shown = text
        attempt = paths.newest_attempt()
        if now["state"] in ENDED_STATES and not (watch and attempt and alive.will_continue(attempt)):
            leave_report(paths)
            return
        if not watch:
            return
        time.sleep(WATCH_S)
        if reason := alive.poll_dead(paths.newest_attempt()):
            if not is_live(paths):
                return
            record_silent_end(paths, reason)


def _tell_cancelled(run: RunPaths, jobs: SlurmJobs | None) -> None:
    if jobs is not None:
        click.echo(f"muster: {run.run_id} is over, but held nodes: cancelled Slurm job {jobs}", err=True)


def _status_lines(status: dict[str, Any]) -> list[str]:
    job = f", Slurm job {status['job_id']}" if status["job_id"] else ""
    lines = [f"{status['run']}: {status['state']} ({status['backend']}{job})"]
    lines += [f"  {status['waiting']}"] if status.get("waiting") else []
    by_state: dict[str, list[str]] = {}
    for node in status["nodes"]:
        by_state.setdefault(node["state"], []).append(node["host"])
    lines += [f"  nodes {state}: {len(hosts)} ({folded(hosts)})" for state, hosts in by_state.items()]
    for role in ("spare", "excluded"):
        if hosts := [node["host"] for node in status["nodes"] if node.get("role") == role]:
            lines.append(f"  {role}: {len(hosts)} ({folded(hosts)})")
    for node in status["nodes"]:
        if not node.get("healthy", True):
            lines.append(f"  unhealthy: {node['host']}: {node['ailment']}")
    lines += [f"  cycle {cycle['cycle']} ended: {cycle['reason']}" for cycle in (status.get("cycles") or [])[:-1]]
    driver = status["driver"]
    code = f", exit code {driver['exit_code']}" if driver["exit_code"] is not None else ""
    lines.append(f"  driver {driver['state']}{code}")
    lines += _ray_lines(status.get("ray"), len(status["nodes"]))
    for guest in status["guests"]:
        code = f", exit code {guest['exit_code']}" if guest["exit_code"] is not None else ""
        lines.append(f"  guest {guest['id']} {guest['state']}{code}")
    lines.append(f"  {_timing_line(status['timings'])}")
    if status["end_reason"]:
        lines.append(f"  ended: {status['end_reason']}")
    if said := next_attempt_message(next_attempt := status["sequel"] or {}):
        ended = f" ({next_attempt['end_reason']})" if next_attempt.get("end_reason") else ""
        lines.append(f"  attempt {status['attempt']} is over{ended}: {said}")
    if error := status["error"]:
        lines.append(f"  error: {error['host'] or 'the step'} in phase {error['phase']}: {error['reason']}")
        lines += [f"    | {line}" for line in error["log_tail"]]
    lines.append(f"  directory {status['run_dir']}" if "run_dir" in status else "")
    return [printable(line) for line in lines if line]


def _ray_lines(ray: dict[str, Any] | None, nodes: int) -> list[str]:
    if ray is None:
        return []
    board = ray["dashboard"]
    lines = [f"  ray at {ray['address']}" + (f", dashboard on {board['host']}:{board['port']}" if board else "")]
    if nodes > 1:
        lines += [f"    {name.removeprefix('RAY_')} = {value}" for name, value in sorted(ray["tuning"].items())]
    return lines


def _timing_line(timings: dict[str, float | None]) -> str:
    start = timings["job_start"]
    known = [f"{name} {when - start:.1f} s" for name, when in timings.items() if start and when and name != "job_start"]
    return "since the job's start: " + ", ".join(known) if known else "not started"


@click.command()
@click.argument("run", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--node", "node_name", metavar="N", help="The log of the node with this rank; with --ray also a host.")
@click.option("--driver", is_flag=True, help="The driver's output (the default).")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="What this rank of a gang wrote (newest cycle).")
@click.option("--cycle", type=click.IntRange(min=0), metavar="C", help="With --rank: in this cycle.")
@click.option("--ray", is_flag=True, help="List what the nodes' archives of Ray's logs hold; see --file.")
@click.option("--file", "pattern", metavar="NAME", help="With --ray: print this file, or all that match, as worker-*.")
@runs_dir_option
def logs(
    run: str | None,
    follow: bool,
    node_name: str | None,
    driver: bool,
    rank: int | None,
    cycle: int | None,
    ray: bool,
    pattern: str | None,
    runs_dir: Path | None,
) -> None:
    """Print the driver's output, a node's log, one rank's of a gang, or Ray's logs, of RUN (default: the newest)."""
    if driver and (node_name is not None or ray):
        raise click.UsageError("--driver excludes --node and --ray")
    if rank is not None and (driver or ray or node_name is not None):
        raise click.UsageError("--rank excludes --driver, --node and --ray")
    if cycle is not None and rank is None:
        raise click.UsageError("--cycle chooses among the logs of a rank: give --rank, too")
    if ray and follow:
        raise click.UsageError("--ray has nothing to follow: Ray's logs are kept when the run ends")
    if pattern is not None and not ray:
        raise click.UsageError("--file names a file of Ray's: give --ray, too")
    if ray:
        return ray_logs.show(find(run, runs_dir), node_name, pattern)
    if node_name is not None and not node_name.isdigit():
        raise click.UsageError(f"--node {node_name}: give the node's rank, a whole number, 0 or more")
    node = None if node_name is None else int(node_name)
    paths = find(run, runs_dir)
    found = _print_log(paths, follow, lambda attempt: _log_of(attempt, node, rank, cycle))
    if not found and node is not None:
        raise click.ClickException(f"{paths.run_id} has no log of a node with rank {node}")
    if not found and rank is not None:
        which = f" in cycle {cycle}" if cycle is not None else ""
        raise click.ClickException(f"{paths.run_id} has no log of rank {rank}{which}; a run with --procs-per-node has")


def _log_of(attempt: AttemptPaths, node: int | None, rank: int | None, cycle: int | None) -> str:
    if rank is not None and cycle is None:
        return (attempt.rank_logs(rank) or [attempt.rank_log(rank, 0)])[-1]
    if rank is not None and cycle is not None:
        return attempt.rank_log(rank, cycle)
    return attempt.driver_log if node is None else attempt.node_log(node)


def _print_log(paths: RunPaths, follow: bool, log_of: Callable[[AttemptPaths], str]) -> bool:
    """Print it, as it grows where that is wanted; and tell whether there was one. Another may follow it."""
    tail: Tail | None = None
    alive = RunMonitor(paths)
    while True:
        attempt = paths.newest_attempt()
        ended = not follow or (not is_live(paths) and not (attempt and alive.will_continue(attempt)))
        ended = ended or alive.poll_dead(attempt) is not None
        if attempt is not None:
            path = log_of(attempt)
            if tail is None or tail.path != path:
                _print_new(tail)
                tail = Tail(path)
            _print_new(tail)
        if ended:
            if follow:
                _tell_cancelled(paths, finalize_dead(paths))
            return tail is not None and os.path.exists(tail.path)
        time.sleep(WATCH_S / 2)


def _print_new(tail: Tail | None) -> None:
    while tail is not None and (data := tail.read()):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@click.command()
@click.argument("run", required=False)
@runs_dir_option
def stop(run: str | None, runs_dir: Path | None) -> None:
    """End RUN: its driver gets SIGTERM and its grace, then everything is ended and verified gone."""
    try:
        ended = stop_run(live_run(run, runs_dir), stop_reason(), log=click.echo)
    except NoLiveRun as error:
        click.echo(str(error))
        return
    except (NoSuchRun, BackendError) as error:
        raise click.ClickException(str(error)) from error
    leave_report(RunPaths(ended.run_dir))
    click.echo(f"{ended.run}: {ended.state}: {ended.end_reason}")


@click.command()
@runs_dir_option
def runs(runs_dir: Path | None) -> None:
    """List runs, oldest first."""
    table = Table(box=None, pad_edge=False)
    for column in ("run", "state", "nodes", "job", "exit", "began", "command"):
        table.add_column(column, overflow="fold")
    listed = all_runs(runs_dir)
    for released, jobs in release_all(listed):
        _tell_cancelled(released, jobs)
    for paths in listed:
        status, job = read_status(paths), read_json(paths.job) or {}
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(os.stat(paths.job).st_mtime))
        code = status.get("exit_code")
        row = [
            paths.run_id,
            status["state"],
            str(job.get("nodes", "")),
            status["job_id"] or "-",
            "-" if code is None else str(code),
            began,
            " ".join(redact_words(job.get("command", [])))[:60],
        ]
        table.add_row(*(Text(printable(cell)) for cell in row))
    # Into a file or a pipe, a run is one line: what reads it looks for whole words.
    Console(width=None if sys.stdout.isatty() else 250).print(table)
