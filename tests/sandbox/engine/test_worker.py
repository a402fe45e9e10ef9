"""The engine's side of a worker: its states, results of programs, and what is killed when."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.sandbox.engine import worker as module
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.worker import ENDED, NOT_NEEDED, NOT_WANTED, Unclean, Worker, parse_report, result_of
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.jail import wire
from muster.sandbox.jail.tree import children_of
from muster.sandbox.jail.worker import REPORT
from muster.sandbox.models import ProgramResult, ProgramStep
from muster.sandbox.output import Captured

DEADLINE_S = 120.0


def python(code: str, timeout: float = 60.0) -> ProgramStep:
    return ProgramStep({"do": "python", "code": code}, timeout)


@pytest.fixture
async def worker(engine: Engine) -> Worker:
    """A warm worker that belongs to the test."""
    return await engine.pool.acquire(None, 60)


# -- reports --------------------------------------------------------------------------------------------------------


def test_a_report_is_read_as_it_is_written() -> None:
    assert parse_report((REPORT % (256, 0.25, 1000, 2, True, 7.5, "timeout")).encode()) == {
        "status": 256,
        "cpu_s": 0.25,
        "max_rss_kb": 1000,
        "killed": 2,
        "clean": True,
        "ended": 7.5,
        "reason": "timeout",
    }
    assert parse_report((REPORT % (0, 0.0, 0, 0, False, 0.0, "-")).encode())["reason"] is None


def result(status: int, reason: str | None = None, oom: bool | None = None) -> ProgramResult:
    cgroup: Any = None if oom is None else SimpleNamespace(has_oom_killed=lambda: oom)
    return result_of({"status": status, "reason": reason}, Captured(b"o"), Captured(b"e"), 1.5, cgroup)


def test_a_result_has_an_exit_code_or_a_signal() -> None:
    exited, killed = result(3 << 8), result(signal.SIGSEGV)
    assert (exited.exit_code, exited.signal) == (3, None) and (killed.exit_code, killed.signal) == (None, 11)
    assert exited.usage.wall_s == 1.5 and exited.stdout.data == b"o"


@pytest.mark.parametrize(
    ("status", "reason", "oom", "expected"),
    [
        (9, None, True, "memory"),
        (1 << 8, None, True, "memory"),  # a child was killed, and the program failed
        (0, None, True, None),  # it went on without the child
        (9, None, False, None),
        (9, "timeout", True, "timeout"),
    ],
)
def test_a_kill_for_lack_of_memory_is_the_reason_unless_there_is_another(
    status: int, reason: str | None, oom: bool, expected: str | None
) -> None:
    assert result(status, reason, oom).reason == expected


# -- a real worker --------------------------------------------------------------------------------------------------


async def test_a_worker_is_warm_then_running_then_idle_then_warm_again(worker: Worker) -> None:
    executions = worker.executions
    assert worker.state == "warm"
    running = asyncio.ensure_future(worker.run(python("print(6 * 7)"), 100))
    await asyncio.sleep(0)
    assert worker.state == "running"
    ended = await running
    assert (ended.exit_code, ended.reason, ended.stdout.data) == (0, None, b"42\n")
    assert worker.state == "idle" and worker.busy_s > 0
    worker.prepare(fresh=True)
    assert (worker.state, worker.executions) == ("warm", executions + 1)


async def test_a_program_ends_at_its_timeout_and_the_worker_is_used_again(worker: Worker) -> None:
    ended = await worker.run(python("while True: pass", 0.2), 100)
    assert (ended.reason, ended.signal) == ("timeout", signal.SIGKILL)
    worker.prepare(fresh=True)
    assert (await worker.run(python("print(1)"), 100)).stdout.data == b"1\n"


async def begun(worker: Worker, code: str) -> asyncio.Future[ProgramResult]:
    """Run a program in the worker; return when it has printed something."""
    execution = worker.waiting
    assert execution is not None
    running = asyncio.ensure_future(worker.run(python(f"print('begun', flush=True)\n{code}"), 100))
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while not execution.stdout._parts:
        assert asyncio.get_running_loop().time() < end, "the program did not begin"
        await asyncio.sleep(0.01)
    return running


SLEEP = "import time; time.sleep(600)"


async def test_a_program_whose_worker_is_lost_is_lost(worker: Worker) -> None:
    running = await begun(worker, SLEEP)
    os.kill(worker.pid, signal.SIGKILL)
    ended = await asyncio.wait_for(running, DEADLINE_S)
    assert (ended.reason, ended.stdout.data) == ("lost", b"begun\n")
    assert (worker.state, worker.why) == ("gone", ENDED)
    assert await asyncio.to_thread(worker.wait_until_gone)


@pytest.mark.parametrize(("sleep_s", "timeout", "reason"), [(0.3, 0.3, "timeout"), (0.0, 3.0, None)])
async def test_whether_a_program_took_too_long_does_not_depend_on_how_busy_the_engine_is(
    worker: Worker, sleep_s: float, timeout: float, reason: str | None
) -> None:
    running = asyncio.ensure_future(worker.run(python(f"import time; time.sleep({sleep_s})", timeout), 100))
    asyncio.get_running_loop().call_later(0.01, time.sleep, timeout + 0.5)  # the report comes before the timer
    assert (await asyncio.wait_for(running, DEADLINE_S)).reason == reason


async def test_a_timeout_is_the_reason_although_the_worker_itself_does_not_run(worker: Worker) -> None:
    running = await begun(worker, SLEEP)
    os.kill(worker.pid, signal.SIGSTOP)  # as if the machine were too busy
    worker.kill("timeout")
    assert (await asyncio.wait_for(running, DEADLINE_S)).reason == "timeout"
    assert (worker.state, worker.why) == ("gone", "its processes did not exit")


async def test_a_program_of_a_destroyed_worker_ends_for_the_given_reason(worker: Worker) -> None:
    running = await begun(worker, SLEEP)
    worker.destroy(NOT_WANTED, "deleted")
    worker.destroy(NOT_NEEDED)  # only the first reason counts
    assert (await asyncio.wait_for(running, DEADLINE_S)).reason == "deleted" and worker.why == NOT_WANTED


async def test_a_program_that_nobody_waits_for_any_more_is_killed_with_its_worker(worker: Worker) -> None:
    running = await begun(worker, SLEEP)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (worker.state, worker.why) == ("gone", NOT_WANTED)


async def test_a_job_that_its_execution_never_read_may_be_run_elsewhere(worker: Worker) -> None:
    (execution,) = await waiting_execution(worker)
    os.kill(execution, signal.SIGSTOP)
    while Path(f"/proc/{execution}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        await asyncio.sleep(0.01)  # until it is stopped: before, it could still read its job
    running = asyncio.ensure_future(worker.run(python("print(1)"), 100))
    await asyncio.sleep(0)
    os.kill(execution, signal.SIGKILL)
    with pytest.raises(Unclean, match="its execution ended before it received its job"):
        await asyncio.wait_for(running, DEADLINE_S)
    assert worker.state == "gone"


async def waiting_execution(worker: Worker) -> list[int]:
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while not (found := children_of(worker.pid)):
        assert asyncio.get_running_loop().time() < end, "no execution was forked"
        await asyncio.sleep(0.01)
    return found


async def test_a_worker_whose_waiting_execution_ended_is_gone(worker: Worker) -> None:
    gone = asyncio.Event()
    on_gone = worker.on_gone
    worker.on_gone = lambda one: (on_gone(one), gone.set())[0]
    (execution,) = await waiting_execution(worker)
    os.kill(execution, signal.SIGKILL)
    await asyncio.wait_for(gone.wait(), DEADLINE_S)
    assert worker.why == "its waiting execution has ended"


async def test_a_worker_whose_tree_cannot_be_killed_is_gone(worker: Worker) -> None:
    worker.begin().close()
    worker.finished({"clean": False})
    assert (worker.state, worker.why) == ("gone", "not all its processes could be killed")


# -- starts that fail -------------------------------------------------------------------------------------------------


class FakeZygote:
    """Sends one message in the name of the worker, and closes its socket; or does nothing."""

    def __init__(self, message: dict[str, Any] | None, closes: bool = True) -> None:
        self._message, self._closes, self.kept = message, closes, -1

    def fork_worker(self, plan: dict[str, Any], control: int) -> None:
        if not self._closes:
            self.kept = os.dup(control)
        if self._message is not None:
            with socket.socket(fileno=os.dup(control)) as channel:
                wire.send(channel, self._message)


@pytest.mark.parametrize(
    ("message", "why"),
    [({"event": "failed", "why": "unshare: not permitted"}, "unshare: not permitted"), (None, ENDED)],
)
async def test_a_worker_that_cannot_be_started_says_why(message: dict[str, Any] | None, why: str) -> None:
    worker, gone = Worker(1, "/nowhere", None, None, False), []
    worker.on_gone = gone.append
    with pytest.raises(SandboxError, match=f"a worker could not be started: {why}"):
        await worker.start(FakeZygote(message), {})  # type: ignore[arg-type]
    assert gone == [worker] and worker.state == "gone" and worker.wait_until_gone()


async def test_a_worker_that_reports_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_TIMEOUT_S", 0.05)
    worker, zygote = Worker(1, "/nowhere", None, None, False), FakeZygote(None, closes=False)
    with pytest.raises(SandboxError, match=r"it was not ready after 0\.05 s"):
        await worker.start(zygote, {})  # type: ignore[arg-type]
    assert worker.state == "gone"
    os.close(zygote.kept)


# -- in a sandbox ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_destroyed_first", [False, True])
async def test_the_sandbox_of_a_worker_ends_with_it_also_during_its_start(is_destroyed_first: bool) -> None:
    sandbox = await asyncio.create_subprocess_exec("sleep", "600")
    worker = Worker(1, "/nowhere", None, None, True)
    steps = [lambda: worker.kill("stopped"), lambda: worker.contain(sandbox.pid)]
    for step in steps if is_destroyed_first else reversed(steps):
        step()
    assert await asyncio.wait_for(sandbox.wait(), DEADLINE_S) == -signal.SIGKILL
    assert worker.state == "gone" and worker.why == "its start was abandoned"
    assert await asyncio.get_running_loop().run_in_executor(None, worker.wait_until_gone)


@pytest.mark.parametrize(("is_contained", "reason"), [(True, "memory"), (False, "lost")])
async def test_a_sandbox_that_its_cgroup_ended_for_its_memory_is_reported_so(is_contained: bool, reason: str) -> None:
    cgroup: Any = SimpleNamespace(has_oom_killed=lambda: True)
    worker = Worker(1, "/nowhere", None, cgroup, True)
    worker.is_contained = is_contained
    assert worker._reason_of_end() == reason
