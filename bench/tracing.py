"""Count of operations on paths under a directory in strace's output. Pure.

An operation is a system call with a path under the directory, even if it fails: open, stat, access, readlink, rename,
link, unlink, mkdir and the like. Reading a directory counts once, even if it takes several calls. Calls on open
descriptors (read, write, fstat, close) do not count: a network filesystem needs no lookup for them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_LINE = re.compile(
    r"^(?P<pid>\d+) +(?P<time>\d+\.\d+) (?:(?P<name>\w+)\(|<\.\.\. (?P<resumed>\w+) resumed>)(?P<rest>.*)$"
)
_RETURNED_PID = re.compile(r"= (\d+)(?:<[^>]*>)?$")
_DIRECTORY = re.compile(r"^(?:AT_FDCWD|\d+)<(?P<path>[^>]*)>, ")  # -y says what a descriptor is
_PATH = re.compile(r'"(?P<path>(?:[^"\\]|\\.)*)"')
_FORKS = ("clone", "clone3", "fork", "vfork")

_UNIQUE = re.compile(r"\.[^./]+\.\d+\.tmp$")  # host and pid in a temporary name

PRELUDE, AGENT, SUPERVISOR, RAY = "prelude", "agent", "supervisor", "ray"


@dataclass(frozen=True)
class Call:
    """A line of strace: a complete call, or the beginning of an interrupted one; `resumed`: the remainder."""

    pid: str
    time: float
    name: str
    rest: str
    resumed: bool


@dataclass
class Operations:
    """Operations by program and by system call."""

    by_program: Counter[str] = field(default_factory=Counter)
    by_call: Counter[str] = field(default_factory=Counter)
    listing: list[str] = field(default_factory=list)  # one line for each, in order

    @property
    def total(self) -> int:
        return self.by_program.total()


def count(lines: Iterable[str], root: str, until: float) -> Operations:
    """Count the operations of all traced processes under `root` before the time `until`."""
    calls = [call for call in map(_parse, lines) if call is not None and call.time < until]
    programs = Programs(calls)
    found = Operations()
    listed: set[tuple[str, str]] = set()  # directories already read since they were opened
    for call in calls:
        programs.update(call)
        path = named_path(call.name, call.rest)
        if call.resumed or path is None or not (path == root or path.startswith(root + os.sep)):
            continue
        if call.name == "openat":
            listed.discard((call.pid, path))
        elif call.name == "getdents64":
            if (call.pid, path) in listed:
                continue
            listed.add((call.pid, path))
        program = programs.of(call.pid)
        found.by_program[program] += 1
        found.by_call[call.name] += 1
        found.listing.append(f"{program}: {call.name} {_UNIQUE.sub('.tmp', os.path.relpath(path, root))}")
    return found


def _parse(line: str) -> Call | None:
    match = _LINE.match(line)
    if match is None:
        return None
    resumed = match["name"] is None
    return Call(match["pid"], float(match["time"]), match["resumed" if resumed else "name"], match["rest"], resumed)


def named_path(call: str, rest: str) -> str | None:
    """Return the path of a call, absolute if strace knows it; of two paths the first, since it is one operation.

    >>> named_path("openat", 'AT_FDCWD</home/a>, "b/c", O_RDONLY) = 3</home/a/b/c>')
    '/home/a/b/c'
    """
    directory = _DIRECTORY.match(rest)
    if call == "getdents64":
        described = re.match(r"^\d+<(?P<path>[^>]*)>", rest)
        return described["path"] if described else None
    path = _PATH.search(rest)
    if path is None or not path["path"]:
        return None
    return os.path.normpath(os.path.join(directory["path"] if directory else "/", path["path"]))


class Programs:
    """Maps traced processes to parts of Muster: by their last exec, else as their parent."""

    def __init__(self, calls: Iterable[Call]) -> None:
        # Read ahead: a child's first calls often precede the end of the call that created it.
        forks = ((call.pid, _RETURNED_PID.search(call.rest)) for call in calls if call.name in _FORKS)
        self._parents = {child[1]: pid for pid, child in forks if child}
        self._known: dict[str, str] = {}

    def of(self, pid: str) -> str:
        if pid not in self._known:
            self._known[pid] = self.of(self._parents[pid]) if pid in self._parents else PRELUDE
        return self._known[pid]

    def update(self, call: Call) -> None:
        """Process a call; must be called for every call in order, since exec changes the program."""
        before = self.of(call.pid)
        if call.name == "execve" and not call.resumed:
            self._known[call.pid] = self._executed(before, call.rest)

    def _executed(self, before: str, rest: str) -> str:
        if before == PRELUDE:
            return AGENT if "agent.pyz" in rest else PRELUDE
        return SUPERVISOR if '"-I", "-S", "-c"' in rest else RAY
