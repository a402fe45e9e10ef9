"""A captured log: rotated while it is written, whole when its scope is closed, not lost with supervisor or owner."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.process.conftest import DEADLINE_S
from tests.running import wait_for

from muster.process import Log, ManagedProcess, Scope, descendants
from muster.process.capture import RotatingLog
from muster.process.proctree import read_processes, read_stat

Python = Callable[[str], list[str]]
Gone = Callable[..., Awaitable[None]]
MANY_LINES = "import sys\nfor n in range(20000): print(n, 'x' * 40)"
TALKATIVE = "i=0; while :; do i=$((i+1)); echo line $i; done"


def rotated(log: Log) -> list[str]:
    """The text of the files, oldest first."""
    paths = [f"{log.path}.{n}" for n in range(log.keep + 5, 0, -1)]
    return [Path(path).read_text() for path in [*paths, log.path] if os.path.exists(path)]


def copier_of(scope: Scope, process: ManagedProcess) -> int:
    """The process that writes the log, once it has begun."""
    children = [pid for pid, (parent, _) in read_processes().items() if parent == scope.supervisor_pid]
    (copier,) = [pid for pid in children if pid != process.pid]
    return copier


async def test_a_captured_log_is_whole_when_its_scope_is_closed(tmp_path: Path, python: Python) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=100_000, keep=100)
    async with Scope("test") as scope:
        assert (await (await scope.spawn(python(MANY_LINES), log=log)).wait()).code == 0
    files = rotated(log)
    assert "".join(files).splitlines() == [f"{n} {'x' * 40}" for n in range(20000)]
    assert len(files) > 5 and all(len(text) <= 100_000 and text.endswith("\n") for text in files)


async def test_the_oldest_files_go(tmp_path: Path, python: Python) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=50_000, keep=2)
    async with Scope("test") as scope:
        await (await scope.spawn(python(MANY_LINES), log=log)).wait()
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1", "log.2"]
    assert "".join(rotated(log)).splitlines()[-1].startswith("19999 ")


async def test_what_a_daemon_writes_after_the_process_has_ended_is_captured_too(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=1000)
    async with Scope("test") as scope:
        script = "setsid sh -c 'trap \"echo last words; exit\" TERM; echo up; while :; do sleep 0.05; done' & exit 0"
        await (await scope.spawn(["sh", "-c", script], log=log)).wait()
        await asyncio.to_thread(wait_for, "the daemon", lambda: "up" in log.tail())
    assert log.tail() == "up\nlast words\n"


OWNER = f"""
import asyncio, os, sys
from muster.process import Log, Scope
async def main():
    scope = await Scope("owner", lost_owner_grace=0.1).open()
    process = await scope.spawn(["sh", "-c", {TALKATIVE!r}], log=Log(sys.argv[1], max_bytes=1 << 30))
    print(scope.supervisor_pid, process.pid, flush=True)
    if sys.stdin.readline():
        os.kill(scope.supervisor_pid, 9)
        await scope.close(0)
        print("closed", flush=True)
        sys.stdin.readline()
asyncio.run(main())
"""


def written_by(pid: int) -> int:
    """The bytes that the process has written so far."""
    return int(Path(f"/proc/{pid}/io").read_text().split("wchar: ")[1].split()[0])


@pytest.mark.parametrize("victim", ["owner", "supervisor"])
async def test_nothing_is_lost_with_the_owner_or_the_supervisor(
    victim: str, tmp_path: Path, python: Python, gone: Gone
) -> None:
    """All that the process has written is in the file: whole lines without a gap, up to the very last one."""
    log = Log(str(tmp_path / "log"))
    argv = [*python(OWNER), log.path]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        supervisor, process = map(int, owner.stdout.readline().split())
        (copier,) = [pid for pid in descendants(supervisor) if pid != process]
        await asyncio.to_thread(wait_for, "output", lambda: len(log.tail()) > 1000)
        os.kill(copier, signal.SIGSTOP)  # so that something is on its way when the victim is killed
        await asyncio.to_thread(wait_for, "the copier to stop", lambda: read_stat(copier)[0] == b"T")
        await asyncio.to_thread(wait_for, "more output", lambda: written_by(process) > os.path.getsize(log.path))
        written = written_by(process)
        if victim == "owner":
            owner.kill()
            await gone(process)
        else:
            os.kill(supervisor, signal.SIGSTOP)
            owner.stdin.write("go\n")
            owner.stdin.flush()
            await gone(process, supervisor)
        os.kill(copier, signal.SIGCONT)
        await gone(copier)
    text = Path(log.path).read_text()
    assert len(text) >= written
    lines = text.splitlines()
    assert lines[:-1] == [f"line {n}" for n in range(1, len(lines))]


async def test_signals_for_everybody_do_not_end_the_capture(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=1000)
    async with Scope("test") as scope:
        script = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
        process = await scope.spawn(["sh", "-c", script], log=log)
        await asyncio.to_thread(wait_for, "the process", lambda: "up" in log.tail())
        copier = copier_of(scope, process)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(copier, signum)
        assert (await scope.close(60)).killed == 0
    assert log.tail().startswith("up\n") and log.tail().endswith("saved\n")


async def test_unread_output_does_not_prevent_closing_a_scope(tmp_path: Path, gone: Gone) -> None:
    """The copying process hangs, as on a disk that does not answer: it is left to itself."""
    log = Log(str(tmp_path / "log"), max_bytes=1000)
    async with Scope("test") as scope:
        process = await scope.spawn(["sh", "-c", "echo up; sleep 1000"], log=log)
        await asyncio.to_thread(wait_for, "the process", lambda: "up" in log.tail())
        copier = copier_of(scope, process)
        os.kill(copier, signal.SIGSTOP)
        await asyncio.wait_for(scope.close(0), DEADLINE_S)
    os.kill(copier, signal.SIGCONT)
    await gone(copier)


def writer(log: Log) -> RotatingLog:
    assert log.max_bytes is not None
    return RotatingLog(log.open(), log.path, log.max_bytes, log.keep)


def test_a_line_longer_than_a_file_is_cut_and_none_other(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=10, keep=9)
    writer(log).write(b"one\ntwo\nthree\n" + b"y" * 25 + b"\nend\n")
    assert rotated(log) == ["one\ntwo\n", "three\n", "y" * 10, "y" * 10, "y" * 5 + "\nend\n"]


def test_a_line_that_comes_in_pieces_goes_over_to_the_next_file(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=10, keep=9)
    writing = writer(log)
    for piece in (b"one\nt", b"w", b"o and", b"\nthree\nfo", b"ur", b"teen\n"):
        writing.write(piece)
        assert log.tail(3).encode().endswith(piece[-3:])  # nothing is held back
    assert rotated(log) == ["one\n", "two and\n", "three\n", "fourteen\n"]


def test_without_old_files_the_line_that_was_begun_is_kept(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=10, keep=0)
    writing = writer(log)
    for piece in (b"one\nt", b"wo and\n"):
        writing.write(piece)
    assert rotated(log) == ["two and\n"]


def test_an_old_log_is_continued_and_counts(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=10)
    Path(log.path).write_text("12345678\n")
    os.chmod(log.path, 0o600)
    writer(log).write(b"abc\n")
    assert rotated(log) == ["12345678\n", "abc\n"]
    assert os.stat(log.path).st_mode & 0o777 == 0o600


def test_without_old_files_a_full_one_begins_again(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=10, keep=0)
    writer(log).write(b"one\ntwo\nthree\n")
    assert rotated(log) == ["three\n"]


def test_a_log_whose_directory_is_gone_is_written_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    log = Log(str(tmp_path / "place" / "log"), max_bytes=10)
    writing = writer(log)
    os.rename(tmp_path / "place", tmp_path / "elsewhere")
    writing.write(b"one\ntwo\nthree\nfour\nfive\n")
    assert (tmp_path / "elsewhere" / "log").read_text() == "one\ntwo\nthree\nfour\nfive\n"


def test_a_full_disk_costs_output_and_the_log_says_how_much(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=1000)
    writing = writer(log)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        writing.write(b"kept\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
        writing.write(b"missing\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writing.write(b"again\n")
    assert log.tail() == "kept\n\nmuster: 8 bytes of output could not be written here\nagain\n"
