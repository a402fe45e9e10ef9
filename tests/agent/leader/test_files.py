"""The leader's file operations, off its event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from muster.agent import run_directory
from muster.agent.leader.files import Files


async def test_operations_run_in_order_on_one_other_thread() -> None:
    files, threads = Files(), []
    answers = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert answers.wait(120)
        threads.append((number, threading.get_ident()))
        return number

    running = [asyncio.ensure_future(files.run(work, number)) for number in range(3)]
    await asyncio.sleep(0)  # the loop goes on while the first one hangs
    answers.set()
    assert await asyncio.gather(*running) == [0, 1, 2]
    assert [number for number, _ in threads] == [0, 1, 2] and len({thread for _, thread in threads}) == 1
    assert threads[0][1] != threading.get_ident()


async def test_a_log_is_read_although_a_write_hangs(tmp_path: Path) -> None:
    files, answers = Files(), threading.Event()
    writing = asyncio.ensure_future(files.run(answers.wait))
    (tmp_path / "log").write_text("one\ntwo\n")
    assert await files.tail(str(tmp_path / "log")) == ["one", "two"]
    answers.set()
    await asyncio.wait_for(files.finish(), 120)
    assert writing.done()


async def test_queued_work_is_done_although_the_task_that_waits_for_it_is_cancelled() -> None:
    files, answers, done = Files(), threading.Event(), []
    hanging = asyncio.ensure_future(files.run(answers.wait))
    queued = asyncio.ensure_future(files.run(done.append, "the last events"))
    await asyncio.sleep(0)  # both are on the thread's queue
    queued.cancel()
    await asyncio.wait({queued})
    assert queued.cancelled() and not done
    answers.set()
    await files.finish()
    assert hanging.done() and done == ["the last events"]


async def test_an_operation_is_repeated_on_the_same_thread_while_the_filesystem_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_directory, "RETRY_INTERVAL_S", 0.01)
    files, threads = Files(), []

    def work() -> str:
        threads.append(threading.get_ident())
        if len(threads) < 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return "text"

    assert await files.retried("/x", work) == "text"
    assert len(threads) == 3 and set(threads) == {await files.run(threading.get_ident)}
