"""A captured log: split into files, whole when its scope is closed, not lost with supervisor or owner."""

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

from muster.process import Log, ManagedProcess, Scope, capture, descendants
from muster.process.capture import SegmentedLog
from muster.process.log_segments import MIN_SEGMENT_BYTES, SEGMENT_COUNT, find_segments, segment_path
from muster.process.proctree import read_processes, read_stat

Python = Callable[[str], list[str]]
Gone = Callable[..., Awaitable[None]]
MANY_LINES = "import sys\nfor n in range(20000): print(n, 'x' * 40)"
TALKATIVE = "i=0; while :; do i=$((i+1)); echo line $i; done"


def files_of(path: str) -> list[str]:
    """The text of the files of a log, in order."""
    return [Path(segment_path(path, start)).read_text() for start in find_segments(path)]


def copier_of(scope: Scope, process: ManagedProcess) -> int:
    """The process that writes the log, once it has begun."""
    children = [pid for pid, (parent, _) in read_processes().items() if parent == scope.supervisor_pid]
    (copier,) = [pid for pid in children if pid != process.pid]
    return copier


async def test_a_captured_log_is_whole_when_its_scope_is_closed(tmp_path: Path, python: Python) -> None:
    log = Log(str(tmp_path / "log"), limit=SEGMENT_COUNT * 200_000)
    async with Scope("test") as scope:
        assert (await (await scope.spawn(python(MANY_LINES), log=log)).wait()).code == 0
    files = files_of(log.path)
    assert "".join(files).splitlines() == [f"{n} {'x' * 40}" for n in range(20000)]
    assert 4 < len(files) < SEGMENT_COUNT and all(text.endswith("\n") and len(text) < 300_000 for text in files)


async def test_the_beginning_and_the_end_are_kept_and_the_limit_holds(tmp_path: Path, python: Python) -> None:
    log = Log(str(tmp_path / "log"), limit=SEGMENT_COUNT * MIN_SEGMENT_BYTES)
    async with Scope("test") as scope:
        await (await scope.spawn(python(MANY_LINES), log=log)).wait()
    files = files_of(log.path)
    assert len(files) == SEGMENT_COUNT and sum(map(len, files)) <= SEGMENT_COUNT * (MIN_SEGMENT_BYTES + 50)
    assert files[0].startswith("0 x") and files[-1].splitlines()[-1].startswith("19999 ")


async def test_what_a_daemon_writes_after_the_process_has_ended_is_captured_too(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), limit=1000)
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
    process = await scope.spawn(["sh", "-c", {TALKATIVE!r}], log=Log(sys.argv[1], limit=1 << 30))
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
    log = Log(str(tmp_path / "log"), limit=1000)
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
    log = Log(str(tmp_path / "log"), limit=1000)
    async with Scope("test") as scope:
        process = await scope.spawn(["sh", "-c", "echo up; sleep 1000"], log=log)
        await asyncio.to_thread(wait_for, "the process", lambda: "up" in log.tail())
        copier = copier_of(scope, process)
        os.kill(copier, signal.SIGSTOP)
        await asyncio.wait_for(scope.close(0), DEADLINE_S)
    os.kill(copier, signal.SIGCONT)
    await gone(copier)


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def writer(path: str, segment_bytes: int = 10) -> SegmentedLog:
    return SegmentedLog(Log(path).open(), path, segment_bytes)


def test_a_file_ends_with_a_line(log: str) -> None:
    writer(log).write(b"one\ntwo\nthree\nfour\n")
    assert files_of(log) == ["one\ntwo\n", "three\n", "four\n"]
    assert find_segments(log) == [0, 8, 14]


def test_a_line_that_comes_in_pieces_stays_in_its_file(log: str) -> None:
    writing = writer(log)
    for piece in (b"one\nt", b"w", b"o and", b"\nthree\nfo", b"ur", b"teen\nend\n"):
        writing.write(piece)
        assert "".join(files_of(log)).encode().endswith(piece[-3:])  # nothing is held back
    assert files_of(log) == ["one\ntwo and\n", "three\nfourteen\n", "end\n"]


def test_only_a_very_long_line_is_cut(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_LINE_BYTES", 15)
    writer(log).write(b"one\n" + b"y" * 60 + b"\nend\n")
    assert files_of(log) == ["one\n" + "y" * 21, "y" * 25, "y" * 14 + "\n", "end\n"]


def test_an_old_log_is_continued_and_counts(log: str) -> None:
    Path(log).write_text("12345678\n")
    os.chmod(log, 0o600)
    writer(log).write(b"abc\ndef\nghi\n")
    writer(log).write(b"jkl\n")
    assert files_of(log) == ["12345678\n", "abc\ndef\n", "ghi\njkl\n"]
    assert {os.stat(segment_path(log, start)).st_mode & 0o777 for start in find_segments(log)} == {0o600}


def test_a_log_whose_directory_is_gone_is_written_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    writing = writer(str(tmp_path / "place" / "log"))
    os.rename(tmp_path / "place", tmp_path / "elsewhere")
    writing.write(b"one\ntwo\nthree\nfour\nfive\n")
    assert (tmp_path / "elsewhere" / "log").read_text() == "one\ntwo\nthree\nfour\nfive\n"


def test_a_full_disk_costs_output_and_the_log_says_how_much(log: str) -> None:
    writing = writer(log, 1000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        writing.write(b"kept\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
        writing.write(b"missing\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writing.write(b"again\n")
    assert Log(log).tail() == "kept\n\nmuster: 8 bytes of output could not be written here\nagain\n"
