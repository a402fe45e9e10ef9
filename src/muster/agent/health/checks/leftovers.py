"""Processes that other Slurm jobs of the user have left on the node."""

from __future__ import annotations

import os
from collections.abc import Iterable

from muster.agent.health.checks.finding import CheckedNode, Finding, failed, passed, skipped

JOB_VARIABLE = b"SLURM_JOB_ID="
MOST_NAMED = 5


def check_leftovers(node: CheckedNode, threshold: float | None) -> Finding:
    own = node.env.get("SLURM_JOB_ID")
    return skipped("not in a Slurm job") if own is None else judge_processes(_processes(), own)


def judge_processes(processes: Iterable[tuple[int, str, bytes]], own_job: str) -> Finding:
    """Judge processes, given as pid, name and environment: one of another job has that job's number in it."""
    found = []
    for pid, name, environment in processes:
        jobs = [
            entry[len(JOB_VARIABLE) :].decode() for entry in environment.split(b"\0") if entry.startswith(JOB_VARIABLE)
        ]
        if jobs and own_job not in jobs:
            found.append(f"{name} ({pid}, job {jobs[0]})")
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return failed(f"processes of other jobs: {', '.join(found[:MOST_NAMED])}{more}") if found else passed()


def _processes() -> Iterable[tuple[int, str, bytes]]:
    """Yield the processes of this user whose environment can be read."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == os.geteuid():
                with (
                    open(f"/proc/{entry}/environ", "rb") as file,
                    open(f"/proc/{entry}/comm", encoding="utf-8") as name,
                ):
                    yield int(entry), name.read().strip(), file.read()
        except OSError:
            continue  # it has ended, or is another user's
