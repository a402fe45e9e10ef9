"""`muster logs`: print the log of a run's driver, of a node, of a gang's rank or of Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from muster.cli.json_output import as_text_or_base64, json_option, print_json
from muster.cli.output import print_cancelled_job, write_output
from muster.cli.ray_logs import print_ray_logs
from muster.cli.run_argument import resolve_run, run_argument, runs_dir_option
from muster.process.log_reader import READ_BYTES, LogReader, tail_position
from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.rundir.hosts import host_names
from muster.runs.cycle_output import cycle_output
from muster.runs.monitor import RunMonitor, finalize_dead
from muster.runs.stop import is_live

FOLLOW_POLL_S = 0.25


@click.command()
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Print new output until the run has ended.")
@click.option("--node", "node_name", metavar="N|HOST", help="Print the log of the node with this index or host name.")
@click.option("--driver", is_flag=True, help="Print the driver's output (the default).")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Print the output of this rank of a gang.")
@click.option(
    "--cycle",
    type=click.IntRange(min=0),
    metavar="C",
    help="Print only this cycle. Default: all cycles of the driver; the newest one of a rank.",
)
@click.option(
    "-n",
    "--tail",
    "tail",
    type=click.IntRange(min=0),
    metavar="N",
    help="Print only the last N lines, or begin with them.",
)
@click.option("--ray", is_flag=True, help="List the files in the nodes' archives of Ray's logs; see --file.")
@click.option("--file", "pattern", metavar="NAME", help="With --ray: print the files that match, such as worker-*.")
@json_option("Print each line, or file of Ray's logs, as one JSON object.")
@runs_dir_option
def logs(
    run: str | None,
    follow: bool,
    node_name: str | None,
    driver: bool,
    rank: int | None,
    cycle: int | None,
    tail: int | None,
    ray: bool,
    pattern: str | None,
    as_json: bool,
    runs_dir: Path | None,
) -> None:
    """Print the log of RUN's driver, of a node, of a gang's rank or of Ray (default: the newest run's driver)."""
    _check_options(follow, node_name, driver, rank, cycle, tail, ray, pattern)
    paths = resolve_run(run, runs_dir)
    if ray:
        return print_ray_logs(paths, node_name, pattern, as_json)
    node = None if node_name is None else _node_index(paths, node_name)
    write = JsonLines().write if as_json else write_output
    found = _print_log(paths, follow, tail, lambda attempt: _selected(attempt, node, rank, cycle), write)
    if not found and node is not None:
        raise click.ClickException(f"{paths.run_id} has no log of a node with index {node}; {_nodes_text(paths)}")
    if not found and rank is not None:
        which = f" in cycle {cycle}" if cycle is not None else ""
        raise click.ClickException(
            f"{paths.run_id} has no log of rank {rank}{which}; only runs with --procs-per-node have logs per rank"
        )
    if not found and cycle is not None:
        raise click.ClickException(
            f"{paths.run_id} has no output of cycle {cycle}: see `muster status --json`, `cycles`"
        )


def _check_options(
    follow: bool,
    node: str | None,
    driver: bool,
    rank: int | None,
    cycle: int | None,
    tail: int | None,
    ray: bool,
    pattern: str | None,
) -> None:
    """Raise UsageError for options that exclude each other."""
    if driver and (node is not None or ray):
        raise click.UsageError("--driver excludes --node and --ray")
    if rank is not None and (driver or ray or node is not None):
        raise click.UsageError("--rank excludes --driver, --node and --ray")
    if cycle is not None and (ray or node is not None):
        raise click.UsageError(
            "--cycle chooses a part of the driver's or a rank's output: it excludes --node and --ray"
        )
    if tail is not None and ray:
        raise click.UsageError("--ray excludes --tail")
    if ray and follow:
        raise click.UsageError("--ray excludes --follow: Ray's logs are archived when the run ends")
    if pattern is not None and not ray:
        raise click.UsageError("--file names a file in Ray's logs: give --ray, too")


def _node_index(run: RunPaths, name: str) -> int:
    """Return the index of a node that is given by index or host name."""
    if name.isdigit():
        return int(name)
    attempt = run.newest_attempt()
    hosts = host_names(attempt) if attempt is not None else []
    if name in hosts:
        return hosts.index(name)
    known = f": {', '.join(hosts[:8])}" if hosts else ""
    raise click.UsageError(
        f"--node {name}: {run.run_id} has no such node; give the node's index or its host name{known}"
    )


class JsonLines:
    """Prints output as one JSON object per line of it: `text`, or `base64` for a line that is not UTF-8."""

    def __init__(self) -> None:
        self._rest = b""

    def write(self, data: bytes) -> None:
        """Print the complete lines; an empty `data` ends the output, and its last line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            lines, self._rest = [self._rest], b""
        for line in lines:
            print_json({"event": "output", **as_text_or_base64(line)})


def _nodes_text(run: RunPaths) -> str:
    job = read_record(run.job)
    nodes = int(job.get("nodes") or 0) + int(job.get("spares") or 0)
    return (
        f"its job has {nodes} node{'s' * (nodes != 1)}, with indexes from 0, and a node that never started has no log"
    )


@dataclass(frozen=True)
class SelectedOutput:
    """A part of a log: from `start` to `end` (None: to its end, as it grows)."""

    path: str
    start: int = 0
    end: int | None = None


def _selected(attempt: AttemptPaths, node: int | None, rank: int | None, cycle: int | None) -> SelectedOutput | None:
    """Return what to print of an attempt; None if there is none yet."""
    if node is not None:
        return SelectedOutput(attempt.node_log(node))
    if rank:
        newest = (attempt.rank_logs(rank) or [attempt.rank_log(rank, 0)])[-1]
        return SelectedOutput(newest if cycle is None else attempt.rank_log(rank, cycle))
    if rank is None and cycle is None:
        return SelectedOutput(attempt.driver_log)
    part = cycle_output(attempt, cycle) if rank is None or _is_gang(attempt) else None
    return SelectedOutput(attempt.driver_log, part.start, part.end) if part is not None else None


def _is_gang(attempt: AttemptPaths) -> bool:
    return read_record(RunPaths(os.path.dirname(attempt.root)).job).get("procs_per_node") is not None


def _print_log(
    paths: RunPaths,
    follow: bool,
    tail: int | None,
    selected: Callable[[AttemptPaths], SelectedOutput | None],
    write: Callable[[bytes], None],
) -> bool:
    """Print the log, with `follow` as it grows and over later cycles and attempts; return whether one exists."""
    reader: LogReader | None = None
    end: int | None = None
    monitor = RunMonitor(paths)
    while True:
        attempt = paths.newest_attempt()
        ended = not follow or (not is_live(paths) and not (attempt and monitor.will_continue(attempt)))
        ended = ended or monitor.poll_dead(attempt) is not None
        output = selected(attempt) if attempt is not None else None
        if output is not None:
            if reader is None or reader.path != output.path:
                _print_new(reader, end, write)
                start = 0 if tail is None or reader is not None else tail_position(output.path, tail, output.end)
                reader = LogReader(output.path, max(start, output.start))
            end = output.end
            _print_new(reader, end, write)
        if ended or (reader is not None and end is not None and reader.position >= end):
            write(b"")
            if follow and ended:
                print_cancelled_job(paths, finalize_dead(paths))
            return reader is not None and (reader.position > 0 or os.path.exists(reader.path))
        time.sleep(FOLLOW_POLL_S)


def _print_new(reader: LogReader | None, end: int | None, write: Callable[[bytes], None]) -> None:
    while reader is not None:
        wanted = READ_BYTES if end is None else min(READ_BYTES, end - reader.position)
        data = reader.read_with_notice(wanted) if wanted > 0 else b""
        if not data:
            return
        write(data)
