"""What the launcher (srun, or the local one) says on its stderr of tasks that ended: who could not even start.

A node that cannot see the run directory, has no such interpreter or whose container does not start never joins; only
the launcher's stderr names it. The prelude's own words come through there too, as `muster: HOST: reason`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster import exit_codes

_MEANING = {
    exit_codes.CONTAINER_FAILED: "its container could not be started: no such runtime, or no such image",
    exit_codes.RUN_DIR_NOT_VISIBLE: "cannot see the run directory: it must be on a filesystem that every node shares",
    exit_codes.SETUP_FAILED: "--setup failed",
    exit_codes.HEALTH_CHECK_FAILED: "--health-check failed",
    exit_codes.OLD_PYTHON: "its Python is older than 3.9, which the agent needs",
    exit_codes.NO_PYTHON: "no Python interpreter at the path chosen for the nodes",
}

_PRELUDE = re.compile(r"^muster: (?P<host>\S+): (?P<reason>.+)$")
_TASK = re.compile(r"^(?:srun|step): error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$")
_NODE = re.compile(r"^(?:srun|step): error: Node failure on (?P<host>\S+)")
# In pyxis's, Apptainer's and Charliecloud's own words.
_CONTAINER = re.compile(r"^(?:slurmstepd: error: pyxis: +|FATAL: +|ch-run\[\d+\]: error: )(?P<words>.+)$")
_LAUNCH = re.compile(r"^srun: error: Task launch for \S+ failed on node (?P<host>\S+): (?P<how>.+)$")


@dataclass(frozen=True)
class EarlyEnd:
    """A task that the launcher saw end."""

    host: str
    rank: int | None
    reason: str


def parse(lines: Iterable[str], hosts: Sequence[str] = ()) -> list[EarlyEnd]:
    """Every ended task, with the prelude's reason where it gave one, before or after: the two arrive separately.

    `hosts` by rank: srun numbers the tasks of each group of a hetjob from 0, so the host tells more than the number.

    >>> parse(["srun: error: n3: task 2: Exited with exit code 121", "muster: n3: cannot see /x"])
    [EarlyEnd(host='n3', rank=2, reason='cannot see /x')]
    """
    lines = list(lines)
    early = "its container did not start: " + words if (words := _runtime_words(lines)) else "its agent ended early"
    reasons: dict[str, str] = {}
    ends: list[tuple[str, int | None, str]] = []
    for line in lines:
        if match := _PRELUDE.match(line):
            reasons[match["host"]] = match["reason"]
        elif match := _TASK.match(line):
            code = re.fullmatch(r"Exited with exit code (\d+)", match["how"])
            meaning = _MEANING.get(int(code[1])) if code else None
            how = meaning or f"{early}: {match['how']}"
            ends += [(host, rank, how) for host, rank in _tasks(match["host"], match["tasks"])]
        elif match := _NODE.match(line):
            ends += [(host, None, "Slurm reports that the node failed") for host in _hosts(match["host"])]
        elif match := _LAUNCH.match(line):
            how = f"Slurm could not start its agent: {match['how']}"
            ends += [(host, None, how) for host in _hosts(match["host"])]
    return [EarlyEnd(host, _rank(host, rank, hosts), reasons.get(host, how)) for host, rank, how in ends]


def _runtime_words(lines: Iterable[str]) -> str | None:
    """What a container runtime gave as its reason. It does not say on which node; on several it is mostly the same."""
    said = [match["words"] for match in map(_CONTAINER.match, lines) if match]
    errors = [words for words in said if words.startswith("[ERROR]")]  # of enroot's, within pyxis's longer story
    return (errors or said or [None])[0]


def _rank(host: str, task: int | None, hosts: Sequence[str]) -> int | None:
    known = task is not None and host in hosts and hosts[task : task + 1] != [host]
    return hosts.index(host) if known else task


def read(path: str, hosts: Sequence[str] = ()) -> list[EarlyEnd]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return parse((line.rstrip() for line in file), hosts)
    except OSError:
        return []


def _tasks(hosts: str, tasks: str) -> list[tuple[str, int]]:
    """(host, rank) of each task: srun folds what ended alike into one line, with hosts and ranks both in order."""
    names, ranks = _hosts(hosts), _ranks(tasks)
    return list(zip(names, ranks)) if len(names) == len(ranks) else [(hosts, rank) for rank in ranks]


def _hosts(text: str) -> list[str]:
    """'n[08-10,12],x' -> ['n08', 'n09', 'n10', 'n12', 'x']"""
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
    """'0-2,5' -> [0, 1, 2, 5]"""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks.extend(range(int(first), int(last or first) + 1))
    return ranks


class LauncherLog:
    """Follows the file; a look returns the ends that the look before saw first, by when their reasons are there too."""

    def __init__(self, path: str, hosts: Sequence[str] = ()) -> None:
        self._path, self._hosts = path, hosts
        self._size = 0
        self._fresh: set[int | str] = set()
        self._told: set[int | str] = set()

    def look(self) -> list[EarlyEnd]:
        try:
            with open(self._path, "rb") as file:  # opened, not just looked at: that asks a network filesystem anew
                size = os.fstat(file.fileno()).st_size
        except OSError:
            return []
        if size == self._size and not self._fresh:
            return []
        self._size = size
        ends = {end.host if end.rank is None else end.rank: end for end in read(self._path, self._hosts)}
        ripe, self._fresh = self._fresh, ends.keys() - self._told - self._fresh
        self._told |= ripe
        return [ends[task] for task in ends if task in ripe]
