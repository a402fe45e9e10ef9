"""Log files: written directly by the process or captured, and read from the end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from muster.process import Log, Scope, SpawnError, descendants, log_reader
from muster.process.capture import SegmentedLog


async def test_a_log_without_a_limit_is_the_process_s_own_descriptor_and_costs_no_process(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"))
    (tmp_path / "log").write_text("before\n")
    async with Scope("test") as scope:
        process = await scope.spawn(["sh", "-c", "echo out; echo err >&2; read x; exec sleep 1000"], log=log)
        assert os.readlink(f"/proc/{process.pid}/fd/1") == os.readlink(f"/proc/{process.pid}/fd/2") == log.path
        assert descendants(scope.supervisor_pid) == [process.pid]
        while log.tail() != "before\nout\nerr\n":  # until pytest's own deadline
            await asyncio.sleep(0.01)


async def test_a_stream_that_is_given_does_not_go_to_the_log(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), limit=1000)
    with open(tmp_path / "err", "w") as err:
        async with Scope("test") as scope:
            script = ["sh", "-c", "echo out; echo err >&2"]
            await (await scope.spawn(script, stderr=err.fileno(), log=log)).wait()
    assert (log.tail(), (tmp_path / "err").read_text()) == ("out\n", "err\n")


@pytest.mark.parametrize("limit", [None, 1000])
async def test_a_log_that_cannot_be_opened_refuses_the_start_and_leaks_nothing(
    tmp_path: Path, limit: int | None
) -> None:
    async with Scope("test") as scope:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(SpawnError, match="no/such"):
            await scope.spawn(["true"], stdin=0, log=Log(str(tmp_path / "no/such/log"), limit))
        with pytest.raises(SpawnError, match="no-such-program"):
            await scope.spawn(["no-such-program"], log=Log(str(tmp_path / "log"), limit))
        await (await scope.spawn(["true"], log=Log(str(tmp_path / "log"), limit))).wait()
        assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("limit", [None, 1000])
async def test_a_log_that_is_open_is_not_opened_again(tmp_path: Path, limit: int | None) -> None:
    """Opening it again may fail at that moment, on a filesystem that has lost its server."""
    (tmp_path / "logs").mkdir()
    log = Log(str(tmp_path / "logs" / "log"), limit)
    opened = log.open()
    (tmp_path / "logs").rename(tmp_path / "elsewhere")
    async with Scope("test") as scope:
        before = os.listdir("/proc/self/fd")
        process = await scope.spawn(["echo", "text"], log=log, opened_log=opened)
        assert (await process.wait()).code == 0
        assert len(os.listdir("/proc/self/fd")) == len(before)
    os.close(opened)
    assert (tmp_path / "elsewhere" / "log").read_text() == "text\n"


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        Log("log", limit=-1)


def test_a_limit_of_zero_is_no_limit() -> None:
    assert Log("log", limit=0).capture() is None and Log("log").capture() is None
    assert Log("log", limit=1).capture() is not None


def test_a_tail_reaches_into_older_files_and_no_further_than_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "MIN_COMPLETE_BYTES", 1)
    log = Log(str(tmp_path / "log"))
    SegmentedLog(log.open(), log.path, 8).write(b"one\ntwo\nthree\nfour\nsix\n")
    assert log.tail() == "one\ntwo\nthree\nfour\nsix\n"
    assert log.tail(6) == "r\nsix\n" and log.tail(10) == "\nfour\nsix\n"
    assert Log(str(tmp_path / "nothing")).tail() == ""
