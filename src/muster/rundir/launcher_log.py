"""Parse the stderr of the launcher (srun, or the local one) for tasks that ended, above all before they joined.

A node never joins if it cannot see the run directory, lacks the interpreter or cannot start its container; only the
launcher's stderr names it. The prelude prints its reasons there too, as `muster: HOST: reason`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster import exit_codes

_MEANING = {
    exit_codes.CONTAINER_FAILED: (  # Python exits with the same code if its last messages cannot be written
        "its container could not be started (no such runtime, or no such image), or its agent could not write to the "
        "run directory (a full or failing filesystem)"
    ),
    exit_codes.RUN_DIR_NOT_VISIBLE: "cannot see the run directory: it must be on a filesystem that every node shares",
    exit_codes.SETUP_FAILED: "--setup failed",
    exit_codes.HEALTH_CHECK_FAILED: "--health-check failed",
    exit_codes.OLD_PYTHON: "its Python is older than 3.9, which the agent needs",
    exit_codes.NO_PYTHON: "no Python interpreter at the path chosen for the nodes",
}

_PRELUDE = re.compile(r"^muster: (?P<host>\S+): (?P<reason>.+)$")
_TASK = re.compile(r"^(?:srun|step): error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$")
_NODE = re.compile(r"^(?:srun|step): error: Node failure on (?P<host>\S+)")
# Error messages of pyxis, Apptainer and Charliecloud.
_CONTAINER = re.compile(r"^(?:slurmstepd: error: pyxis: +|FATAL: +|ch-run\[\d+\]: error: )(?P<error>.+)$")
# Lines of srun and slurmstepd that never explain a failure. Also used by grep -E in the job script.
NO_CAUSE_PATTERN = (
    r"^srun: ([Jj]ob|[Ff]orc|launch/|[Ww]arning|cluster configuration lacks|Check SLURM_JOB_ID)"
    r"|^slurmstepd.*\*\*\* (JOB|STEP) .* CANCELLED|^$"
)
_NO_CAUSE = re.compile(NO_CAUSE_PATTERN)
# slurmstepd's line about a signal with which Slurm ends the step. Also used by grep in the job script.
CANCELLED_PATTERN = r"\*\*\* STEP .* CANCELLED AT [^ ]* DUE TO [A-Z][A-Z ]*[A-Z]"
_CANCELLED = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ (?:DUE TO (?P<cause>[A-Z ]+?) )?\*\*\*")
_LAUNCH = re.compile(r"^srun: error: Task launch for \S+ failed on node (?P<host>\S+): (?P<how>.+)$")


@dataclass(frozen=True)
class EarlyEnd:
    """A task whose end the launcher has reported."""

    host: str
    node_index: int | None
    reason: str


def parse(lines: Iterable[str], hosts: Sequence[str] = ()) -> list[EarlyEnd]:
    """Return every ended task, with the prelude's reason if there is one: it may arrive before or after the end.

    With `hosts` (by node index) the index comes from the host name: srun numbers the tasks of each hetjob group from 0.

    >>> parse(["srun: error: n3: task 2: Exited with exit code 121", "muster: n3: cannot see /x"])
    [EarlyEnd(host='n3', node_index=2, reason='cannot see /x')]
    """
    lines = list(lines)
    error = _container_error(lines)
    early = f"its container did not start: {error}" if error else "its agent ended early"
    reasons: dict[str, str] = {}
    ends: list[tuple[str, int | None, str]] = []
    for line in lines:
        if match := _PRELUDE.match(line):
            reasons[match["host"]] = match["reason"]
        elif match := _TASK.match(line):
            code = re.fullmatch(r"Exited with exit code (\d+)", match["how"])
            meaning = _MEANING.get(int(code[1])) if code else None
            how = meaning or f"{early}: {match['how']}"
            ends += [(host, node_index, how) for host, node_index in _tasks(match["host"], match["tasks"])]
        elif match := _NODE.match(line):
            ends += [(host, None, "Slurm reports that the node failed") for host in _hosts(match["host"])]
        elif match := _LAUNCH.match(line):
            how = f"Slurm could not start its agent: {match['how']}"
            ends += [(host, None, how) for host in _hosts(match["host"])]
    return [
        EarlyEnd(host, _node_index(host, node_index, hosts), reasons.get(host, how)) for host, node_index, how in ends
    ]


def explaining_lines(lines: Iterable[str]) -> list[str]:
    """Return the lines that may explain a failure.

    >>> explaining_lines(["srun: cluster configuration lacks support for cpu binding", "srun: error: no such node"])
    ['srun: error: no such node']
    """
    return [line for line in lines if not _NO_CAUSE.match(line)]


def cancellation(path: str) -> str | None:
    """Return why Slurm ended the step ("time limit"; empty for scancel); None if it did not, or that is unknown."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = [match["cause"] or "" for match in map(_CANCELLED.search, file) if match]
    except OSError:
        return None
    return max(found).lower() if found else None


def _container_error(lines: Iterable[str]) -> str | None:
    """Return the error of a container runtime. It does not name the node; on several nodes it is mostly the same."""
    messages = [match["error"] for match in map(_CONTAINER.match, lines) if match]
    errors = [message for message in messages if message.startswith("[ERROR]")]  # enroot's, among pyxis's other lines
    return (errors or messages or [None])[0]


def _node_index(host: str, task: int | None, hosts: Sequence[str]) -> int | None:
    known = task is not None and host in hosts and hosts[task : task + 1] != [host]
    return hosts.index(host) if known else task


def read(path: str, hosts: Sequence[str] = ()) -> list[EarlyEnd]:
    """Parse a launcher log; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return parse((line.rstrip() for line in file), hosts)
    except OSError:
        return []


def _tasks(hosts: str, tasks: str) -> list[tuple[str, int]]:
    """Return (host, node index) of each task: srun folds equal ends into one line, with both in the same order."""
    names, node_indexes = _hosts(hosts), _ranks(tasks)
    return (
        list(zip(names, node_indexes))
        if len(names) == len(node_indexes)
        else [(hosts, node_index) for node_index in node_indexes]
    )


def _hosts(text: str) -> list[str]:
    """Expand 'n[08-10,12],x' to ['n08', 'n09', 'n10', 'n12', 'x']."""
    hosts: list[str] = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.fullmatch(r"([^\[]*)\[([\d,-]+)\](.*)", name)
        if match is None:
            hosts.append(name)
            continue
        for part in match[2].split(","):
            width = len(part.partition("-")[0])
            hosts += [
                f"{match[1]}{number:0{width}d}{rest}" for number in _ranks(part) for rest in _hosts(match[3]) or [""]
            ]
    return hosts


def _ranks(text: str) -> list[int]:
    """Expand '0-2,5' to [0, 1, 2, 5]."""
    node_indexes: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        node_indexes.extend(range(int(first), int(last or first) + 1))
    return node_indexes


class LauncherLog:
    """Follows the file. An end is reported one poll after it was first seen: by then its reason has arrived too."""

    def __init__(self, path: str, hosts: Sequence[str] = ()) -> None:
        self._path, self._hosts = path, hosts
        self._size = 0
        self._fresh: set[int | str] = set()
        self._reported: set[int | str] = set()

    def poll(self) -> list[EarlyEnd]:
        """Return the ends that the poll before saw for the first time."""
        try:
            with open(self._path, "rb") as file:  # not os.stat: only open makes NFS ask its server
                size = os.fstat(file.fileno()).st_size
        except OSError:
            return []
        if size == self._size and not self._fresh:
            return []
        self._size = size
        ends = {end.host if end.node_index is None else end.node_index: end for end in read(self._path, self._hosts)}
        ripe, self._fresh = self._fresh, ends.keys() - self._reported - self._fresh
        self._reported |= ripe
        return [ends[task] for task in ends if task in ripe]
