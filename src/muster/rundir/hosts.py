"""Node names of an attempt, as its job script recorded them."""

from __future__ import annotations

import re

from muster.rundir.paths import AttemptPaths

STEP_NODES_VARIABLE = "MUSTER_STEP_NODES"  # number of the step's nodes: Slurm may allocate fewer than were requested


def host_names(attempt: AttemptPaths) -> list[str]:
    """Return the names of the step's nodes by node index; empty before the job script has written them."""
    try:
        return _read_names(attempt)
    except OSError:
        return []


def _read_names(attempt: AttemptPaths) -> list[str]:
    with open(attempt.hosts, encoding="utf-8", errors="replace") as file:
        return file.read().split()


def host_name(attempt: AttemptPaths, node_index: int) -> str:
    return dict(enumerate(host_names(attempt))).get(node_index, f"rank-{node_index}")


def hosts_by_index(attempt: AttemptPaths, nodes: int) -> list[str]:
    """Return a name for each of `nodes` nodes: `rank-N` where the job script could not record the names.

    Raises OSError if the file exists and cannot be read: names of a leader that differ from those of the agents would
    be wrong until the end of its term.
    """
    try:
        names = _read_names(attempt)
    except FileNotFoundError:
        names = []
    return names if len(names) == nodes else [f"rank-{node_index}" for node_index in range(nodes)]


def host_file_name(host: str) -> str:
    """Return a host name that is safe as part of a file name: a site's node names cannot leave the directory."""
    return re.sub(r"[^\w.-]|^\.+", "_", host)
