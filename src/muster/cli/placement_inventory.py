"""Query and print what `muster.placement` runs on a cluster, for `muster programs` and `muster reap`."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import click

from muster.cli.node_entry import cannot_start
from muster.cli.output import print_table
from muster.launch.exec_step import ExecStep, session_environment

_PROGRAM = ("python", "-m", "muster.placement")


def query_placement(entry: ExecStep, *arguments: str) -> dict[str, Any]:
    """Run `python -m muster.placement` on the head, in the driver's environment, and return the JSON it prints."""
    if entry.ray_address is None:
        raise click.ClickException(f"{entry.run.run_id} has no Ray cluster: nothing is placed on it")
    argv = entry.command(pty=False)
    try:
        done = subprocess.run(
            argv,
            env=session_environment(os.environ, [*_PROGRAM, *arguments]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise cannot_start(argv[0], error) from error
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not answers:
        errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("srun: ")]
        reason = errors[-1] if errors else f"exit code {done.returncode} without a message"
        raise click.ClickException(f"{entry.node.host} could not list what {entry.run.run_id} runs: {reason}")
    answer: dict[str, Any] = json.loads(answers[-1])
    return answer


def print_placement(programs: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> None:
    if not programs and not groups:
        click.echo("nothing is placed on the cluster")
        return
    rows = [[p["name"], p["host"] or "-", str(p["pid"] or "-"), _state(p), _owner(p)] for p in programs]
    rows += [[group["name"], "-", "-", "placement group", _owner(group)] for group in groups]
    print_table(("program", "host", "pid", "state", "owner"), rows)


def _state(program: dict[str, Any]) -> str:
    if program["state"] == "silent":
        return "does not answer"
    if program["state"] == "ended":
        return program["exit"] or "ended"
    return f"running for {_duration(time.time() - program['since'])}"


def _duration(seconds: float) -> str:
    """Return a duration in the largest unit that fits.

    >>> _duration(7300)
    '2 h'
    """
    for name, unit in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(0, seconds):.0f} s"


def _owner(entry: dict[str, Any]) -> str:
    return entry["why"] if entry["owned"] else f"{'none' if entry['owned'] is False else 'not known'}: {entry['why']}"
