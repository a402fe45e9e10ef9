"""A worker: its commands and reports, the limits of a tree, and when it refuses to run another program."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox import forked

from muster.sandbox.jail import confine, landlock, wire, worker
from muster.sandbox.jail.confine import Confinement, ConfinementPlan
from muster.sandbox.jail.worker import CHECK_USAGE, INTERRUPT, KILL, SPAWN, SPAWN_AGAIN, JailWorker

DEADLINE_S = 120.0


def plan_for(directory: Path, **changed: Any) -> ConfinementPlan:
    """Return the plan of a worker at level process, with an own directory."""
    for name in ("home", "tmp"):
        (directory / name).mkdir(exist_ok=True)
    values = {
        "profile": "process",
        "read_only": [],
        "memory_mb": 9000,
        "processes": 16,
        "open_files": 256,
        "file_mb": 64,
        "scratch_mb": 1,
        "network": False,
        "counts_processes": False,
        "directory": str(directory),
    }
    return ConfinementPlan.from_json({**values, **changed})


class ForkedWorker:
    """A worker in a forked process, and the engine's end of its control socket."""

    def __init__(self, plan: ConfinementPlan) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(DEADLINE_S)
        self._opened: list[int] = []

        def main() -> None:
            self.control.close()
            worker.main(theirs, plan)

        self.pid = forked.start(main)
        theirs.close()

    def event(self) -> dict[str, Any]:
        message, fds = wire.receive(self.control)
        for fd in fds:
            os.close(fd)
        assert message is not None
        return message

    def spawn(self, command: bytes = SPAWN) -> tuple[socket.socket, int]:
        """Have an execution forked; return our ends of its job socket and its stdout."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, child_out = os.pipe()
        with theirs:
            wire.send_bytes(self.control, command, (theirs.fileno(), child_out, child_out))
        os.close(child_out)
        self._opened.append(out)
        return ours, out

    def run(self, code: str, command: bytes = SPAWN) -> int:
        """Start a program; return its stdout."""
        channel, out = self.spawn(command)
        with channel:
            wire.send_job(channel, {"do": "python", "code": code}, b"")
        return out

    def ended(self) -> list[str]:
        """Wait for the report; return status, killed, clean and reason."""
        words = ["{"]
        while words[0].startswith("{"):  # reports of CPU time that was used meanwhile
            words = wire.receive_bytes(self.control)[0].decode().split()
        assert words[0] == "ended", words
        assert 0 <= time.monotonic() - float(words[6]) < 600
        return [words[1], *words[4:6], words[7]]

    def close(self) -> int:
        self.control.close()
        for fd in self._opened:
            os.close(fd)
        return forked.exit_code(self.pid)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[ForkedWorker]:
    """A worker that is ready."""
    made = ForkedWorker(plan_for(tmp_path))
    assert made.event() == {"event": "born", "pid": made.pid}
    assert made.event() == {"event": "ready", "proc": False}
    yield made
    assert made.close() == 0  # it ends with the engine


def text(fd: int) -> str:
    found = b""
    while data := os.read(fd, 65536):
        found += data
    return found.decode()


def test_programs_run_one_after_the_other_each_in_an_empty_scratch(started: ForkedWorker) -> None:
    for _ in range(2):
        out = started.run("import os; print(os.listdir('.'), os.environ['HOME'] == os.getcwd()); open('f', 'w')")
        assert started.ended() == ["0", "0", "1", "-"]
        assert text(out) == "[] True\n"


def test_the_next_step_of_a_program_finds_the_files_of_the_last(started: ForkedWorker) -> None:
    started.run("open('f', 'w').write('kept')")
    started.ended()
    out = started.run("print(open('f').read())", SPAWN_AGAIN)
    started.ended()
    assert text(out) == "kept\n"


def test_a_program_is_killed_for_the_reason_that_the_engine_gives(started: ForkedWorker) -> None:
    out = started.run("import time; print('begun', flush=True); time.sleep(1000)")
    assert os.read(out, 100) == b"begun\n"
    started.control.send(KILL + b"timeout")
    assert started.ended() == ["9", "1", "1", "timeout"]


def test_an_interrupt_reaches_the_program(started: ForkedWorker) -> None:
    waits = "try:\n    print('begun', flush=True)\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    exit(5)"
    out = started.run(f"import time\n{waits}")
    assert os.read(out, 100) == b"begun\n"
    started.control.send(INTERRUPT)
    assert started.ended() == [str(5 << 8), "0", "1", "-"]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("disk", "open('f', 'wb').write(bytes(2 << 20))"),
        ("processes", "[subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL) for _ in range(20)]"),
    ],
    ids=["disk", "processes"],
)
def test_a_tree_that_exceeds_a_limit_is_killed_at_the_next_check(started: ForkedWorker, reason: str, code: str) -> None:
    out = started.run(f"import subprocess, time; {code}; print('begun', flush=True); time.sleep(1000)")
    assert os.read(out, 100) == b"begun\n"
    started.control.send(CHECK_USAGE)
    assert started.ended()[2:] == ["1", reason]


def test_a_tree_that_exceeds_its_memory_reports_it_and_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confine, "_limit", lambda plan: None)  # which would count the memory of the tests as well
    made = ForkedWorker(plan_for(tmp_path, memory_mb=64))
    made.event(), made.event()
    out = made.run("import time; x = bytearray(b'x' * (80 << 20)); print('begun', flush=True); time.sleep(1000)")
    assert os.read(out, 100) == b"begun\n"
    made.control.send(CHECK_USAGE)
    report = made.event()
    assert report["event"] == "usage" and report["bytes"] > 64 << 20
    assert made.ended()[2:] == ["1", "memory"]
    assert made.close() == 0


def test_a_command_without_a_program_has_no_effect(started: ForkedWorker) -> None:
    for command in (CHECK_USAGE, INTERRUPT, KILL + b"timeout"):
        started.control.send(command)
    out = started.run("print(1)")
    assert (started.ended(), text(out)) == (["0", "0", "1", "-"], "1\n")


def test_a_worker_without_the_descriptors_of_an_execution_says_so_and_exits(tmp_path: Path) -> None:
    made = ForkedWorker(plan_for(tmp_path))
    made.event(), made.event()
    made.control.send(SPAWN)
    assert made.event() == {"event": "failed", "why": "it did not receive the execution's descriptors"}
    assert made.close() == 1


def test_a_worker_that_cannot_be_confined_says_why(tmp_path: Path) -> None:
    made = ForkedWorker(plan_for(tmp_path, workspace=str(tmp_path / "missing")))
    assert made.event()["event"] == "born"
    failed = made.event()
    assert failed["event"] == "failed" and "missing/home" in failed["why"]
    assert made.close() == 1


# -- parts ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def unforked(tmp_path: Path) -> Iterator[JailWorker]:
    """A worker in this process, which is not confined."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        rules = landlock.Ruleset(files=False, tcp=False, scopes=False)
        made = JailWorker(one, plan_for(tmp_path), Confinement(rules, False))
        yield made
        for directory, _ in made.scratch:
            os.close(directory.fd)


def test_a_worker_is_fit_for_the_next_program_once_its_scratch_is_empty(unforked: JailWorker, tmp_path: Path) -> None:
    (tmp_path / "home" / "left").write_text("x")
    (tmp_path / "beside").write_text("x")
    assert unforked.why_unfit(False, [0, 1, 2]) is None and (tmp_path / "home" / "left").exists()
    assert unforked.why_unfit(True, [0, 1, 2]) is None
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["home", "tmp"]


def test_a_worker_is_unfit_after_a_change_of_its_directories_or_limits(unforked: JailWorker, tmp_path: Path) -> None:
    os.chmod(tmp_path / "tmp", 0o777)
    assert unforked.why_unfit(True, [0, 1, 2]) == f"a program changed {tmp_path}/tmp"
    unforked.attributes = ()
    assert unforked.why_unfit(False, [0, 1, 2]) == "a program changed its limits or its scheduling"


def test_a_worker_with_too_many_files_to_remove_is_unfit(
    unforked: JailWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MAX_REMOVED_FILES", 3)
    for number in range(5):
        (tmp_path / "home" / str(number)).touch()
    assert unforked.why_unfit(True, [0, 1, 2]) == f"{tmp_path}/home could not be emptied"


def test_files_that_cannot_be_counted_are_more_than_any_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "skipped").write_bytes(bytes(1 << 20))
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    used = worker._used_bytes({str(tmp_path): ["skipped"], "/no/such/place": []}, 64)
    assert 100_000 <= used < 200_000
    monkeypatch.setattr(worker, "MAX_COUNTED_FILES", 0)
    assert worker._used_bytes({str(tmp_path): []}, 64) == 1 << 62


def test_the_exit_of_an_execution_that_waits_is_reported_too(started: ForkedWorker) -> None:
    channel, _ = started.spawn()
    channel.close()  # it gets no job
    assert started.ended() == ["0", "0", "1", "-"]
