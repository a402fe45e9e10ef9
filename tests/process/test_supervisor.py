"""The supervisor's side of a scope: its messages, and its end with everything it started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process.conftest import is_alive
from tests.running import wait_for

from muster.process.bootstrap import supervisor_command
from muster.process.supervisor import LENGTH

DEADLINE_S = 120.0
IGNORES_TERM = ["sh", "-c", "trap '' TERM; echo ready; exec sleep 1000"]
ENDS_BY_TERM = ["sleep", "1000"]


class RawOwner:
    """The owner's end of the socket, without a scope around it."""

    def __init__(self, grace: float, directories: list[str]) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(DEADLINE_S)
        argv = [*supervisor_command(), str(theirs.fileno()), "-1", str(grace), "", *directories]
        with theirs:
            first = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.keeping = self.read()
        self.supervisor = int(self.keeping["pid"])
        assert first.wait(DEADLINE_S) == 0

    def read(self) -> dict[str, Any]:
        header = self._read_bytes(LENGTH.size)
        message: dict[str, Any] = json.loads(self._read_bytes(LENGTH.unpack(header)[0]))
        return message

    def read_until(self, event: str) -> dict[str, Any]:
        while (message := self.read())["event"] != event:
            pass
        return message

    def _read_bytes(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            assert part, "the supervisor has closed the connection"
            found += part
        return found

    def send(self, fds: list[int], **message: Any) -> None:
        body = json.dumps(message).encode()
        socket.send_fds(self.socket, [LENGTH.pack(len(body))], fds)
        self.socket.sendall(body)

    def spawn(self, number: int, argv: list[str], stdout: int | None = None) -> dict[str, Any]:
        """Ask for a start and return the answer."""
        with open(os.devnull, "r+b") as null:
            fds = [null.fileno(), null.fileno() if stdout is None else stdout, null.fileno()]
            self.send(fds, do="spawn", id=number, argv=argv, cwd=None, env=dict(os.environ), capture=None)
        return self.read()

    def close(self, grace: float) -> None:
        self.send([], do="close", grace=grace)

    def leave(self) -> None:
        self.socket.close()


Owners = Callable[..., RawOwner]


@pytest.fixture
def owner() -> Iterator[Owners]:
    """Starts supervisors, which end at the latest when the test does."""
    owners: list[RawOwner] = []

    def start(grace: float = 0.0, directories: list[str] | None = None) -> RawOwner:
        owners.append(RawOwner(grace, directories or []))
        return owners[-1]

    yield start
    for one in owners:
        one.leave()
    wait_for("the supervisors to end", lambda: not any(is_alive(one.supervisor) for one in owners))


def spawn_ready(owner: RawOwner, number: int, argv: list[str]) -> int:
    """Start a program and return its pid once it has printed a line."""
    read, write = os.pipe()
    with os.fdopen(read) as output:
        pid = int(owner.spawn(number, argv, stdout=write)["pid"])
        os.close(write)
        assert output.readline() == "ready\n"
    return pid


def test_a_supervisor_introduces_itself_in_a_session_of_its_own(owner: Owners) -> None:
    one = owner()
    assert one.keeping["event"] == "keeping" and one.keeping["cgroup"] is None
    assert os.getsid(one.supervisor) == one.supervisor != os.getsid(0)


def test_a_start_and_an_end_are_reported_under_the_owner_s_number(owner: Owners) -> None:
    one = owner()
    started = one.spawn(7, ["sh", "-c", "exit 3"])
    assert (started["event"], started["id"]) == ("spawned", 7)
    ended = one.read()
    assert (ended["event"], ended["id"], ended["pid"]) == ("exited", 7, started["pid"])
    assert os.waitstatus_to_exitcode(ended["status"]) == 3 and ended["signalled"] is False


def test_a_start_that_fails_is_refused_and_others_work(owner: Owners) -> None:
    one = owner()
    refused = one.spawn(1, ["/no/such/program"])
    assert (refused["event"], refused["id"]) == ("refused", 1) and "/no/such/program" in refused["error"]
    assert one.spawn(2, ["true"])["event"] == "spawned"


def test_the_end_of_an_orphan_has_no_number(owner: Owners, tmp_path: Path) -> None:
    one, fifo = owner(), tmp_path / "fifo"
    os.mkfifo(fifo)
    shell = one.spawn(1, ["sh", "-c", f"(exec setsid sh -c 'read x <{fifo}; exit 5') & exit 0"])
    ended = one.read()
    assert (ended["id"], ended["pid"]) == (1, shell["pid"])
    fifo.write_text("go\n")
    orphan = one.read()
    assert (orphan["event"], orphan["id"], os.waitstatus_to_exitcode(orphan["status"])) == ("exited", None, 5)


def test_a_close_sends_term_and_does_not_wait_for_the_grace_once_all_have_ended(owner: Owners) -> None:
    one = owner()
    one.spawn(1, ENDS_BY_TERM)
    one.close(10_000)
    ended = one.read_until("exited")
    assert os.waitstatus_to_exitcode(ended["status"]) == -signal.SIGTERM and ended["signalled"] is True
    closed = one.read()
    assert (closed["event"], closed["killed"], closed["left"]) == ("closed", 0, [])


def test_after_the_grace_what_ignores_term_is_killed(owner: Owners) -> None:
    one = owner()
    pid = spawn_ready(one, 1, IGNORES_TERM)
    one.close(0)
    ended = one.read_until("exited")
    assert (ended["pid"], os.waitstatus_to_exitcode(ended["status"])) == (pid, -signal.SIGKILL)
    assert one.read_until("closed")["killed"] >= 1


def test_while_a_scope_ends_starts_are_refused_and_the_grace_can_be_shortened(owner: Owners) -> None:
    one = owner()
    pid = spawn_ready(one, 1, IGNORES_TERM)
    one.close(10_000)
    refused = one.spawn(2, ["true"])
    assert (refused["event"], refused["id"], refused["error"]) == ("refused", 2, "the scope was closed")
    assert is_alive(pid)
    one.close(0)
    assert one.read_until("closed")["killed"] >= 1
    assert not is_alive(pid)


def read_calls(pid: int) -> int:
    """The number of times that a process has called read(2) and the like."""
    return int(next(line for line in Path(f"/proc/{pid}/io").read_text().splitlines() if "syscr" in line).split()[1])


def test_a_closing_supervisor_does_not_read_all_of_proc_again_and_again(owner: Owners) -> None:
    one = owner()
    pid = spawn_ready(one, 1, ["sh", "-c", "(trap '' TERM; setsid sh -c 'echo ready; exec sleep 1000') & sleep 1000"])
    one.close(10_000)
    one.read_until("exited")  # what it has left ignores TERM
    before, began = read_calls(one.supervisor), time.monotonic()
    wait_for("two seconds", lambda: time.monotonic() - began > 2.0)
    machine = len([entry for entry in os.listdir("/proc") if entry.isdigit()])
    calls = read_calls(one.supervisor) - before
    one.close(0)
    assert one.read_until("closed")["killed"] >= 1
    assert calls < 100 + machine, f"{calls} reads in two seconds, with {machine} processes on the machine"
    wait_for("the end of what ignores TERM", lambda: not is_alive(pid))


def test_a_later_close_does_not_lengthen_the_grace(owner: Owners) -> None:
    one = owner()
    spawn_ready(one, 1, IGNORES_TERM)
    one.close(0.5)
    one.close(10_000)
    assert one.read_until("closed")["killed"] >= 1  # within the deadline of the socket


@pytest.mark.parametrize("last", ["nothing", "half a header", "half a message"])
def test_an_owner_that_is_gone_ends_the_scope_whatever_it_sent_last(owner: Owners, tmp_path: Path, last: str) -> None:
    scratch = tmp_path / "parent" / "scratch"
    scratch.mkdir(parents=True)
    (scratch / "file").touch()
    one = owner(grace=0.0, directories=[str(scratch)])
    pid = spawn_ready(one, 1, IGNORES_TERM)
    one.socket.sendall({"nothing": b"", "half a header": b"\0\0", "half a message": LENGTH.pack(100) + b"{"}[last])
    one.leave()
    wait_for("the program to end", lambda: not is_alive(pid))
    wait_for("its directory, and the empty one above, to be removed", lambda: not scratch.parent.exists())


def test_a_closed_scope_leaves_its_directories_to_a_live_owner(owner: Owners, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    one = owner(directories=[str(scratch)])
    one.close(0)
    one.read_until("closed")
    assert one.socket.recv(1) == b""  # it has exited, and so it has done all it does
    assert scratch.exists()


def test_a_signal_meant_for_the_owner_s_group_does_not_end_the_supervisor(owner: Owners) -> None:
    one = owner()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(one.supervisor, signum)
    assert one.spawn(1, ["true"])["event"] == "spawned"


def test_programs_get_signals_that_the_supervisor_handles_with_their_defaults(owner: Owners) -> None:
    one = owner()
    started = one.spawn(1, ENDS_BY_TERM)
    os.kill(started["pid"], signal.SIGHUP)
    assert os.waitstatus_to_exitcode(one.read()["status"]) == -signal.SIGHUP
