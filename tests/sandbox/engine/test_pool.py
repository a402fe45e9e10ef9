"""The pool: warm workers are reused, idle ones retired, lost ones replaced; levels that do not work are named."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.serving import a_python_for_anybody

from muster.sandbox.engine import isolation, pool
from muster.sandbox.engine.admission_queue import PROGRAM, Overloaded
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.execution import Execution
from muster.sandbox.engine.worker import NOT_NEEDED, Worker
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.jail import wire
from muster.sandbox.models import Program, ProgramStep

DEADLINE_S = 120.0
Engines = Callable[..., Awaitable[Engine]]


async def until(what: str, holds: Callable[[], Any]) -> None:
    """Wait until the condition holds."""
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while not holds():
        assert asyncio.get_running_loop().time() < end, f"waited for {what}"
        await asyncio.sleep(0.01)


async def test_a_warm_worker_is_used_again_unless_an_unused_one_is_needed(engine: Engine) -> None:
    worker = await engine.pool.acquire(None, 60)
    engine.pool.release(worker)
    assert await engine.pool.acquire(None, 60) is worker
    engine.pool.release(worker)
    other = await engine.pool.acquire(None, 60, unused=True)
    assert other is not worker and other.executions == 0
    engine.pool.release(other)


async def test_each_worker_has_a_directory_which_is_removed_with_it(engine: Engine) -> None:
    worker = await engine.pool.acquire(None, 60, unused=True)
    assert os.path.dirname(worker.directory) == engine.directory and os.path.isdir(f"{worker.directory}/home")
    worker.destroy(NOT_NEEDED)
    await until("its directory to be removed", lambda: not os.path.exists(worker.directory))
    assert engine.pool.lost == 0 and worker.number not in engine.pool.workers


async def test_a_lost_worker_is_counted_and_replaced(engine: Engine) -> None:
    (worker,) = engine.pool.workers.values()
    os.kill(worker.pid, signal.SIGKILL)
    await until("its replacement", lambda: worker.state == "gone" and engine.pool.count == 1)
    assert engine.pool.lost == 1
    replacement = await engine.pool.acquire(None, 60)
    assert replacement is not worker
    engine.pool.release(replacement)


async def test_idle_workers_above_the_minimum_are_retired(engines: Engines) -> None:
    engine = await engines(idle_s=0)
    more = [await engine.pool.acquire(None, 60, unused=True) for _ in range(2)]
    assert engine.pool.count >= 2  # and one that is kept ready, as soon as it has started
    for worker in more:
        await worker.run(ProgramStep({"do": "python", "code": ""}, 60.0), 100)
        engine.pool.release(worker)
    await until("the retirement", lambda: engine.pool.count == 1)
    assert engine.pool.lost == 0


async def test_a_lost_zygote_is_replaced_and_workers_wait_for_it(engine: Engine) -> None:
    assert engine.pool.zygote is not None
    lost = engine.pool.zygote.pid
    os.kill(lost, signal.SIGKILL)
    await until("the loss", lambda: engine.pool.zygote is None or engine.pool.zygote.pid != lost)
    await until("the replacement", lambda: engine.pool.zygote is not None)
    worker = await engine.pool.acquire(None, 60, unused=True)
    engine.pool.release(worker)
    assert engine.pool.zygote.pid != lost


async def test_without_a_zygote_no_worker_is_started(engine: Engine) -> None:
    zygote, engine.pool.zygote = engine.pool.zygote, None
    engine.pool.last_failure = "(the reason)"
    with pytest.raises(SandboxError, match=r"the warm interpreter was lost and is not replaced yet \(the reason\)"):
        await engine.pool.acquire(None, 60, unused=True)
    engine.pool.zygote = zygote


async def test_a_worker_that_takes_too_long_to_start_is_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(engine.pool, "_start", never)
        with pytest.raises(SandboxError, match=r"no worker could be started within 0\.05 s"):
            await engine.pool.acquire(None, 0.05, unused=True)


async def test_a_deleted_workspace_loses_its_workers_and_its_files(engine: Engine) -> None:
    directory = engine.workspaces.enter("w")
    worker = await engine.pool.acquire(directory, 60)
    removed = asyncio.Event()
    engine.pool.remove_workspace(directory, removed.set)
    assert worker.state == "gone"
    with pytest.raises(SandboxError, match="the workspace was deleted"):
        await engine.pool.acquire(directory, 60)
    await asyncio.wait_for(removed.wait(), DEADLINE_S)
    assert not os.path.exists(directory) and engine.pool.lost == 0


async def test_a_level_that_does_not_work_here_is_refused_with_every_reason(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "why_impossible", lambda profile: f"no {profile.name} here")
    with pytest.raises(SandboxError) as caught:
        await engines(isolation="auto")
    said = str(caught.value)
    assert said.startswith("isolation level auto is not available here: full (")
    assert "full (user): no user here; floor (floor): no floor here" in said and "--isolation process would" in said
    with pytest.raises(SandboxError) as caught:
        await engines(isolation="floor")
    assert str(caught.value) == "isolation level floor is not available here: floor (floor): no floor here"


async def test_the_next_level_is_used_where_the_strongest_does_not_start(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Worker.start

    async def refuse_namespaces(self: Worker, zygote: Any, plan: dict[str, Any]) -> None:
        if plan["profile"] in ("root", "user"):
            plan = {**plan, "profile": "floor", "directory": "/no/such/place"}
        await start(self, zygote, plan)

    python = a_python_for_anybody()
    if isolation.why_impossible(isolation.FLOOR) is not None or python is None:
        pytest.skip("no Landlock here, or no Python that another user may run")
    monkeypatch.setattr(Worker, "start", refuse_namespaces)
    engine = await engines(isolation="auto", python=python)
    assert engine.pool.level is not None and engine.pool.level.profile is isolation.FLOOR
    assert all("/no/such/place" in reason for reason in engine.pool.level.rejected)
    assert [reason.split(":")[0] for reason in engine.pool.level.rejected] == (
        ["full (root)", "full (user)"] if os.getuid() == 0 else ["full (user)"]
    )


def test_a_worker_s_directory_belongs_to_us_and_its_parts_to_its_user(tmp_path: Path) -> None:
    user = 500_000 if os.getuid() == 0 else None
    pool._make_directory(str(tmp_path / "worker"), user)
    assert os.stat(tmp_path / "worker").st_uid == os.getuid()
    for name in ("home", "tmp"):
        status = os.stat(tmp_path / "worker" / name)
        assert (status.st_uid, status.st_mode & 0o777) == (os.getuid() if user is None else user, 0o700)


async def test_workers_are_bounded_however_many_workspaces_there_are(engines: Engines) -> None:
    engine = await engines(workers_max=2)
    for number in range(8):
        step = ProgramStep({"do": "python", "code": "print(1)"}, 60.0)
        (ended,) = await engine.run(Program((step,), 100, "python", workspace=f"w{number}"), PROGRAM)
        assert ended.stdout.data == b"1\n"
        assert engine.pool.count_outside_sessions <= 1 + 2
    assert engine.pool.lost == 0


async def test_a_worker_that_gets_no_descriptors_is_given_up_and_nothing_is_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Execution:
        raise OSError(errno.EMFILE, "Too many open files")

    step = ProgramStep({"do": "python", "code": "print(1)"}, 60.0)
    work = Program((step,), 100, "python")
    with monkeypatch.context() as patched:
        patched.setattr("muster.sandbox.engine.worker.Execution", refuse)
        await engine.run(work, PROGRAM)  # in the execution that waits already
        with pytest.raises(Overloaded, match="Too many open files"):
            await engine.run(work, PROGRAM)
    (ended,) = await engine.run(work, PROGRAM)
    assert ended.stdout.data == b"1\n" and engine.admission.running == 0


async def test_a_job_that_cannot_be_sent_is_run_by_another_worker(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, refused = wire.send_job, []

    def refuse_once(*arguments: Any) -> None:
        if not refused:
            refused.append(1)
            raise OSError(errno.EMFILE, "Too many open files")
        send(*arguments)

    monkeypatch.setattr("muster.sandbox.engine.execution.wire.send_job", refuse_once)
    step = ProgramStep({"do": "python", "code": "print(1)"}, 60.0)
    (ended,) = await engine.run(Program((step,), 100, "python"), PROGRAM)
    assert ended.stdout.data == b"1\n" and refused
