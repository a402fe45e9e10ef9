"""The engine: programs, cells, retries with another worker, limits of steps, counters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from muster.sandbox import settings
from muster.sandbox.engine.admission_queue import PROGRAM, Overloaded
from muster.sandbox.engine.engine import MAX_WORKER_ATTEMPTS, THREADS_HEADROOM, Engine, threads_of_user
from muster.sandbox.engine.sessions import SessionLost
from muster.sandbox.engine.worker import Unclean
from muster.sandbox.models import Program, ProgramResult, ProgramStep, ResourceUsage
from muster.sandbox.output import Captured


class Fake:
    """A pool and its worker: each time it is taken it runs a given number of steps, and is unfit for the next."""

    def __init__(self, fit_for: list[int]) -> None:
        self.fit_for, self.ran, self.state, self.why = fit_for, [], "warm", "unfit"
        self.counts_processes = True
        self.unused: list[bool] = []
        self.timeouts: list[float] = []

    async def acquire(self, workspace: str | None, wait_s: float | None, unused: bool) -> Fake:
        self.left = self.fit_for.pop(0)
        self.unused.append(unused)
        return self

    def release(self, worker: Fake) -> None:
        pass

    def prepare(self, fresh: bool) -> None:
        pass

    async def run(self, step: ProgramStep, limit: int) -> ProgramResult:
        if not self.left:
            raise Unclean(self.why)
        self.left -= 1
        self.ran.append(step.job["do"])
        self.timeouts.append(step.timeout)
        exit_code = step.job.get("exit", 0)
        return ProgramResult(exit_code, None, None, Captured(), Captured(), ResourceUsage(2.0, 0.0, 0))


async def ends_of(pool: Fake) -> list[str | None]:
    box = Engine(settings.SandboxSettings())
    box.pool = pool  # type: ignore[assignment]
    work = Program((ProgramStep({"do": "compile"}, 1.0), ProgramStep({"do": "run"}, 1.0)), 100, "cpp")
    return [ended.reason for ended in await box._run_in_worker(work, None, None)]


async def test_a_job_goes_to_an_unused_worker_when_one_is_unfit_before_the_first_step() -> None:
    pool = Fake([0, 2])
    assert await ends_of(pool) == [None, None]
    assert pool.ran == ["compile", "run"] and pool.unused == [False, True]


async def test_a_step_that_was_run_is_not_run_again_when_the_next_cannot_begin() -> None:
    pool = Fake([1, 2])
    assert await ends_of(pool) == [None, "lost"]
    assert pool.ran == ["compile"]


async def run_steps(steps: tuple[ProgramStep, ...], within: float) -> Fake:
    box, pool = Engine(settings.SandboxSettings()), Fake([9])
    box.pool = pool  # type: ignore[assignment]
    await box._run_in_worker(Program(steps, 100, "cpp", within=within), None, None)
    return pool


async def test_compiling_and_running_share_the_time() -> None:
    pool = await run_steps((ProgramStep({"do": "compile"}, 5.0), ProgramStep({"do": "run"}, 5.0)), 5.0)
    assert pool.timeouts == [5.0, 3.0]  # the first took two seconds


async def test_after_a_failure_only_steps_that_run_always_are_run() -> None:
    failing, run = ProgramStep({"do": "compile", "exit": 1}, 5.0), ProgramStep({"do": "run"}, 5.0)
    fetch = ProgramStep({"do": "fetch"}, 5.0, always=True)
    assert (await run_steps((failing, run, fetch, run), 60.0)).ran == ["compile", "fetch"]
    assert (await run_steps((run, fetch), 60.0)).ran == ["run", "fetch"]


async def test_a_program_for_which_no_worker_is_fit_was_not_run() -> None:
    pool = Fake([0] * MAX_WORKER_ATTEMPTS)
    with pytest.raises(Overloaded, match="no worker could be made ready"):
        await ends_of(pool)
    assert pool.ran == []


async def test_a_step_has_the_time_that_is_left_and_the_room_of_the_user() -> None:
    box = Engine(settings.SandboxSettings(processes=10))
    step = ProgramStep({"do": "run", "limits": {"cpu_s": 1}}, 5.0, b"i")
    box.pool = Fake([])  # type: ignore[assignment]
    assert box._limited(step, 9.0) is step
    assert box._limited(step, 2.0) == ProgramStep(step.job, 2.0, b"i")
    box.pool.counts_processes = False  # type: ignore[misc]
    box._others = 100
    limits = {"cpu_s": 1, "processes_of_user": 110 + THREADS_HEADROOM}
    assert box._limited(step, 9.0) == ProgramStep({"do": "run", "limits": limits}, 5.0, b"i")


def test_the_threads_of_a_user_are_counted() -> None:
    assert threads_of_user(os.getuid()) >= len(os.listdir("/proc/self/task"))
    assert threads_of_user(4_000_000_000) == 0


# -- a whole engine -------------------------------------------------------------------------------------------------


def python(*codes: str, timeout: float = 60.0) -> Program:
    return Program(tuple(ProgramStep({"do": "python", "code": code}, timeout) for code in codes), 1000, "python")


async def test_steps_run_in_one_directory_until_one_fails(engine: Engine) -> None:
    work = python("open('f', 'w').write('kept')", "print(open('f').read()); exit(3)", "print('never')")
    first, second = await engine.run(work, PROGRAM)
    assert (first.succeeded, second.exit_code, second.stdout.data) == (True, 3, b"kept\n")
    counted = engine.metrics.executions
    assert counted["python", "failed"] == 1 and engine.load()["executed"] == sum(counted.values())


async def test_all_steps_together_have_a_time(engine: Engine) -> None:
    steps = python("import time; time.sleep(0.3)", "import time; time.sleep(600)").steps
    ends = await engine.run(Program(steps, 1000, "python", within=1.0), PROGRAM)
    assert ends[-1].reason == "timeout" and ends[-1].usage.wall_s < 55  # each step alone has a minute


async def test_programs_of_a_workspace_share_its_files(engine: Engine) -> None:
    for code, expected in (("open('f', 'w').write('kept')", b""), ("print(open('f').read())", b"kept\n")):
        (ended,) = await engine.run(Program(python(code).steps, 1000, "python", "w"), PROGRAM)
        assert ended.stdout.data == expected, ended
    assert engine.load()["workspaces"] == 1 and engine.workspaces.remove("w")


async def test_cells_keep_their_state_and_a_lost_session_is_not_created_where_it_must_exist(engine: Engine) -> None:
    first = await engine.cell("s", "x = 41", "Plain", 60, 1000, must_exist=False)
    second = await engine.cell("s", "x + 1", "Plain", 60, 1000, must_exist=True)
    assert (first.status, first.created, second.stdout.data, second.created) == ("completed", True, b"42\n", False)
    with pytest.raises(SessionLost, match="session other does not exist"):
        await engine.cell("other", "1", "Plain", 60, 1000, must_exist=True)
    assert engine.load()["sessions"] == 1 and engine.counters()["sessions_created_total"] == 1


async def test_a_cell_waits_for_the_last_one_of_its_session_for_a_time(
    engines: Callable[..., Awaitable[Engine]],
) -> None:
    engine = await engines(queue_wait_s=0.1)
    await engine.cell("s", "import time", "Plain", 60, 1000, must_exist=False)
    long = asyncio.ensure_future(engine.cell("s", "time.sleep(600)", "Plain", 900, 1000, must_exist=True))
    while not engine.admission.running:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded, match=r"the session was busy for 0\.1 s"):
        await engine.cell("s", "1", "Plain", 60, 1000, must_exist=True)
    assert engine.sessions.delete("s")
    assert (await long).why == "the session was deleted"


async def test_a_closed_engine_runs_nothing_and_leaves_no_directory(
    engines: Callable[..., Awaitable[Engine]],
) -> None:
    engine = await engines()
    directory = engine.directory
    assert os.path.isdir(directory)
    await engine.close()
    assert not os.path.exists(os.path.dirname(directory))
    for attempt in (engine.run(python("1"), PROGRAM), engine.cell("s", "1", "Plain", 1, 1, must_exist=False)):
        with pytest.raises(Overloaded, match="stopping"):
            await attempt
