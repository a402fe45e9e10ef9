"""The output of `muster run`: a live view on a terminal, timestamped lines elsewhere, JSON lines for programs.

The driver's output goes to stdout unchanged, Muster's own lines to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from muster.cli.json_output import as_text_or_base64
from muster.cli.output import write_output
from muster.launch.plan import Prepared
from muster.rundir import RunPaths
from muster.runs.follow import Output, RunEvent, RunResult
from muster.runs.next_attempt import next_attempt_message
from muster.views.sanitize import printable
from muster.views.terminal import BringUpView


def make_display(prepared: Prepared, as_json: bool) -> Display:
    if as_json:
        return JsonDisplay()
    nodes, ray_nodes = prepared.target.nodes, 0
    if prepared.spec.ray:
        ray_nodes = nodes - sum(group.nodes for group in prepared.spec.groups if group.ray is False)
    if sys.stderr.isatty() and prepared.spec.array is None:
        return LiveDisplay(nodes, ray_nodes, prepared.run)
    return Display(nodes, ray_nodes)


class Display:
    """Print timestamped lines: one per phase change, never one per node."""

    def __init__(self, nodes: int, ray_nodes: int) -> None:
        self._total, self._ray_nodes = nodes, ray_nodes
        self._start = time.time()
        self._size = nodes  # of the current cycle
        self._roles: dict[str, object] = {}  # by node index
        self._ranks: set[object] = set()  # that nodes have had
        self._failures: set[str] = set()  # lines that were printed
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)

    def submitted(self, run: str, job_id: str | None, run_dir: str) -> None:
        where = f" as Slurm job {job_id}" if job_id else ""
        self.note(f"run {run}{where}; run directory: {run_dir}")

    def detached(self, run: str, job_id: str | None) -> None:
        """Print both ids on one line of stdout, for scripts."""
        print(f"{run}\t{job_id or '-'}", flush=True)

    def note(self, text: str) -> None:
        self.console.print(Text(f"[{time.time() - self._start:7.1f} s] {printable(text)}"))

    def show(self, item: RunEvent | Output) -> None:
        if isinstance(item, Output):
            return write_output(item.data)
        event = item.fields
        name, state, host = event["event"], str(event.get("state")), event.get("host")
        if name == "node":
            self._show_role(event)
        elif name == "failure" and event.get("phase") != "driver":
            self._show_failure(event)
        elif name == "run" and state in PHASES:
            self._size = event.get("nodes", self._total)
            arrived = f"{self._size} of " if self._size < self._total else "all " if self._total > 1 else ""
            self.note(PHASES[state].format(nodes=counted_nodes(self._total), arrived=arrived))
        elif name == "service" and state == "restarting":
            self.note(f"service {event.get('service')} on {host} {event.get('reason')}; restarting it")
        elif name == "gcs_restart":
            self.note(f"{host}: {event.get('reason')}; restarted with its state after {event.get('seconds')} s")
        elif name == "hang":
            self.note(str(event.get("reason")))
        elif name == "control":
            self.note(f"a program on {host} requests {event.get('kind')}: {event.get('reason')}")
        elif name == "unended":
            self.note(f"{host}: {event.get('reason')}")
        elif name == "waiting":
            self.note(str(event.get("text")))
        elif name == "again":
            self.note(f"attempt {event.get('attempt')} ended: {next_attempt_message(event) or 'another follows'}")
        elif name == "events_lost":
            self.note(EVENTS_LOST.format(file=event.get("file")))
        elif name == "job" and state in JOB_ENDS:
            self.note(JOB_ENDS[state].format(**event))
        elif name == "driver_start":
            ray_nodes = min(self._size, self._ray_nodes)
            ready = f"Ray is up on {counted_nodes(ray_nodes)}; " if ray_nodes else ""
            self.note(f"{ready}driver started")

    def _show_role(self, event: Mapping[str, Any]) -> None:
        """Print a line if a spare has got a rank: that of a lost node, or one that the cycle began without."""
        node, rank, role = str(event.get("rank")), event.get("logical_rank"), event.get("role")
        if (self._roles.get(node), role) == ("spare", "active"):
            what = f"takes over rank {rank}" if rank in self._ranks else f"has arrived late and gets rank {rank}"
            self.note(f"{'spare ' if rank in self._ranks else ''}{event.get('host')} (index {node}) {what}")
        self._roles[node] = role
        self._ranks.add(rank)

    def ready(self, run: str) -> None:
        """Print how to use an idle cluster."""
        self.close()
        self.note(
            f"Ray is up on {counted_nodes(self._ray_nodes)}"
            if self._ray_nodes
            else f"ready: {counted_nodes(self._total)}"
        )
        for what, command in READY_HINTS:
            self.console.print(Text(f"    {command.format(run=run):56}{what}"))

    def ended(self, ended: RunResult) -> None:
        self.note(f"{ended.state}: {ended.end_reason} (exit code {ended.exit_code})")
        error = ended.error
        if error and ended.exit_code and error["phase"] != "driver":
            if not self._show_failure(error) and error["log_tail"]:
                self.note(f"last lines of the log of {error['host'] or 'the step'}:")
            for line in error["log_tail"]:
                self.console.print(Text(f"    | {printable(line)}"))
        if os.path.exists(report := RunPaths(ended.run_dir).report):
            self.note(f"report: {report}")

    def _show_failure(self, error: Mapping[str, Any]) -> bool:
        """Print one line about a failed node, once; return whether it is new."""
        source = f"node {error.get('host')} (index {error.get('rank')})" if error.get("host") else "the step"
        line = f"{source} failed in phase {error.get('phase')!r}: {error.get('reason')}"
        if line in self._failures:
            return False
        self._failures.add(line)
        self.note(line)
        return True

    def task_ended(self, ended: RunResult) -> None:
        """Print one line about a task of an array; `muster status` prints more."""
        self.note(f"{ended.run} {ended.state}: {ended.end_reason} (exit code {ended.exit_code})")

    def close(self) -> None:
        """Do nothing: this display holds no resources."""


EVENTS_LOST = (
    "lines of {file} could not be read (was the disk full for a while?): "
    "some events may be missing here and in the report; the run itself is not affected"
)

PHASES = {
    "gathering": "waiting for {nodes}",
    "starting": "{arrived}{nodes} arrived",
    "restarting": "restarting on the remaining nodes",
    "finishing": "stopping everything on {nodes}",
}


def counted_nodes(count: int) -> str:
    """Return the number with its noun.

    >>> counted_nodes(1), counted_nodes(3)
    ('1 node', '3 nodes')
    """
    return f"{count} node{'s' if count != 1 else ''}"


JOB_ENDS = {
    "ending": "the run has ended ({reason}); waiting until Slurm job {job} has ended",
    "cancelled": "cancelled Slurm job {job}: its job script did not end it",
}


READY_HINTS = (
    ("a shell on the head", "muster attach {run}"),
    ("another driver", "muster run --in {run} -- COMMAND"),
    ("end it", "muster down {run}"),
)


class LiveDisplay(Display):
    """Print the same lines and, until the driver's output begins, a live view of nodes and pending work below them."""

    def __init__(self, nodes: int, ray_nodes: int, run: RunPaths) -> None:
        super().__init__(nodes, ray_nodes)
        view = BringUpView(run)
        self._live = Live(
            view,
            console=self.console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )
        self._live.start()

    def show(self, item: RunEvent | Output) -> None:
        if isinstance(item, Output) or item.fields["event"] == "driver_start":
            self._live.stop()  # the driver's output must not be mixed with the live view
        super().show(item)

    def close(self) -> None:
        self._live.stop()


class JsonDisplay(Display):
    """Print one JSON object per line on stdout: the run's events, the driver's output, the result."""

    def __init__(self) -> None:
        super().__init__(0, False)

    def submitted(self, run: str, job_id: str | None, run_dir: str) -> None:
        self._print({"event": "submitted", "run": run, "job_id": job_id, "run_dir": run_dir})

    def detached(self, run: str, job_id: str | None) -> None:
        """Print nothing: the `submitted` event has both ids."""

    def ready(self, run: str) -> None:
        self._print({"event": "ready", "run": run})

    def note(self, text: str) -> None:
        self._print({"event": "note", "text": text})

    def show(self, item: RunEvent | Output) -> None:
        if isinstance(item, RunEvent):
            self._print(item.fields)
            return
        self._print({"event": "output", **as_text_or_base64(item.data)})

    def ended(self, ended: RunResult) -> None:
        self._print({"event": "result", **asdict(ended)})

    def task_ended(self, ended: RunResult) -> None:
        self.ended(ended)

    def _print(self, fields: dict[str, Any]) -> None:
        print(json.dumps({"time": time.time(), **fields}), flush=True)
