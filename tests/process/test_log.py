"""Log files: written directly by the process or captured, and read from the end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from muster.process import Log, Scope, SpawnError, descendants
from muster.process.capture import RotatingLog


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
    log = Log(str(tmp_path / "log"), max_bytes=1000)
    with open(tmp_path / "err", "w") as err:
        async with Scope("test") as scope:
            script = ["sh", "-c", "echo out; echo err >&2"]
            await (await scope.spawn(script, stderr=err.fileno(), log=log)).wait()
    assert (log.tail(), (tmp_path / "err").read_text()) == ("out\n", "err\n")


@pytest.mark.parametrize("max_bytes", [None, 1000])
async def test_a_log_that_cannot_be_opened_refuses_the_start_and_leaks_nothing(
    tmp_path: Path, max_bytes: int | None
) -> None:
    async with Scope("test") as scope:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(SpawnError, match="no/such"):
            await scope.spawn(["true"], stdin=0, log=Log(str(tmp_path / "no/such/log"), max_bytes))
        with pytest.raises(SpawnError, match="no-such-program"):
            await scope.spawn(["no-such-program"], log=Log(str(tmp_path / "log"), max_bytes))
        await (await scope.spawn(["true"], log=Log(str(tmp_path / "log"), max_bytes))).wait()
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        Log("log", max_bytes=0)
    with pytest.raises(ValueError, match="keep"):
        Log("log", keep=-1)


def test_a_tail_reaches_into_older_files_and_no_further_than_asked(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=8, keep=2)
    RotatingLog(log.open(), log.path, 8, log.keep).write(b"one\ntwo\nthree\nfour\nsix\n")
    assert log.tail() == "three\nfour\nsix\n"
    assert log.tail(6) == "r\nsix\n"
    assert Log(str(tmp_path / "nothing")).tail() == ""


def test_a_log_that_is_rotated_while_it_is_read_is_not_read_twice(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), max_bytes=8, keep=2)
    Path(log.path).write_text("newest\n")
    os.link(log.path, log.path + ".1")  # what the reader meets when the file moves on under its hands
    assert log.tail() == "newest\n"
