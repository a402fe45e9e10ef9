"""The sandbox of one node, without HTTP: it runs programs and cells and returns their results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from dataclasses import replace
from typing import Any, Callable

from muster.process import Scope, ScopeWatcher
from muster.process.file_trees import remove_tree
from muster.sandbox.engine import cgroups, metrics
from muster.sandbox.engine.admission_queue import BATCH, SESSION, Admission, Overloaded
from muster.sandbox.engine.languages import Languages
from muster.sandbox.engine.memory_guard import MemoryGuard
from muster.sandbox.engine.pool import Pool
from muster.sandbox.engine.self_test import verify
from muster.sandbox.engine.sessions import Session, Sessions
from muster.sandbox.engine.worker import Unclean, Worker
from muster.sandbox.engine.workspaces import SHARED, Workspaces
from muster.sandbox.engine.zygote import SandboxError, environment
from muster.sandbox.models import CellResult, Program, ProgramResult, ProgramStep, ResourceUsage, owned_name
from muster.sandbox.output import Captured
from muster.sandbox.settings import CLIENT_PATIENCE_S, KILL_S, SandboxSettings

MAX_WORKER_ATTEMPTS = 3  # workers that are tried for a program when one proves unfit before the program ran
HOUSEKEEPING_INTERVAL_S = 5.0
THREADS_HEADROOM = 64  # for threads that the user starts between two counts
MAX_WAIT_S = CLIENT_PATIENCE_S - KILL_S - 0.5  # for a slot and a worker together: the client must get its response

# The result of a step that was not started because its worker was lost.
LOST = ProgramResult(None, signal.SIGKILL, "lost", Captured(), Captured(), ResourceUsage(0.0, 0.0, 0))


class SupervisorWatch(ScopeWatcher):
    """Calls back when the supervisor is lost."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost

    def supervisor_lost(self) -> None:
        self._on_lost()


class Engine:
    """Runs programs (`run`) and cells of sessions (`cell`) between `open` and `close`."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.metrics = metrics.Metrics()
        self.admission = Admission(settings.workers_max, settings.queue, settings.queue_wait_s)
        self.languages = Languages(environment(settings)["PATH"])
        self.started = time.monotonic()
        self._is_supervised = False
        self.on_supervisor_lost: Callable[[], None] = lambda: None  # the engine cannot go on: close it
        self._tasks: list[asyncio.Task[None]] = []
        self._others = 0  # threads of our user, if its process limit is shared by all workers

    # -- lifecycle --------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the workers and verify the isolation; the engine is ready when this returns."""
        self._parent = cgroups.find_parent() if os.getuid() == 0 else None
        self._top = tempfile.mkdtemp(prefix="muster-sandbox-", dir=self.settings.scratch_dir)
        self.directory = f"{self._top}/box"  # if we are killed, the supervisor removes it and its parent
        for directory in (self._top, self.directory):
            os.makedirs(directory, exist_ok=True)
            os.chmod(directory, 0o711)
        removed = [self.directory, *(dict.fromkeys(self._parent.directories.values()) if self._parent else [])]
        watch = SupervisorWatch(self._on_supervisor_lost)
        self._scope = Scope("sandbox", lost_owner_grace=0.0, directories=removed, watcher=watch)
        self.pool = Pool(self.settings, self._scope, self.directory, self._parent)
        self.sessions = Sessions(self.settings, self.pool)
        try:
            await self._open_scope()
            await self.pool.open()
            await self._count_others()
            settings, first = self.settings, self.pool.first_user_of_workspaces
            self.workspaces = Workspaces(
                self.directory, settings.workspaces_max, settings.session_idle_s, first, self.pool.remove_workspace
            )
            if self._parent is not None:
                cgroups.limit_memory(self._parent, settings.memory_total_mb)
            self.guard = MemoryGuard(
                self.pool.occupied, settings.memory_total_mb, settings.memory_reserve_mb, settings.open_files
            )
            await verify(self)
        except BaseException:
            await self.close()
            raise
        self._tasks = [
            asyncio.create_task(job) for job in (self.sessions.housekeeping(), self._housekeeping(), self.guard.watch())
        ]

    @property
    def is_lost(self) -> bool:
        """Whether the supervisor was killed."""
        return self._scope.lost

    def _on_supervisor_lost(self) -> None:
        """Admit nothing more: without a supervisor no zygote can be started, and nothing cleans up after us."""
        self.admission.close()
        self.on_supervisor_lost()

    async def _open_scope(self) -> None:
        """Start the supervisor. A start that was begun is finished: a supervisor that is half there cannot be ended."""
        opening = asyncio.ensure_future(self._scope.open())
        try:
            await asyncio.shield(opening)
        finally:
            await asyncio.gather(opening, return_exceptions=True)
            self._is_supervised = opening.exception() is None

    async def close(self) -> None:
        """Stop everything; no process and no file is left when this returns."""
        self.admission.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pool.close()
        if self._is_supervised:
            await self._scope.close(grace=0.0)
        if self._parent is not None:
            await asyncio.get_running_loop().run_in_executor(None, cgroups.remove_parent, self._parent)
        await asyncio.get_running_loop().run_in_executor(None, remove_tree, self._top)

    async def _housekeeping(self) -> None:
        while True:
            self.workspaces.expire()
            await self._count_others()
            await asyncio.sleep(HOUSEKEEPING_INTERVAL_S)

    async def _count_others(self) -> None:
        if not self.pool.counts_processes:
            self._others = await asyncio.get_running_loop().run_in_executor(None, threads_of_user, os.getuid())

    # -- running ----------------------------------------------------------------------------------------------------

    async def run(self, work: Program, kind: int) -> list[ProgramResult]:
        """Run the steps and return their results; raises Overloaded if none was started."""
        asked = time.monotonic()
        name = work.workspace or (SHARED if self.settings.shared_scratch else None)
        name = owned_name(name, work.owner) if name else None
        async with self.admission.slot(kind, work.client, work.timeout):
            waited = time.monotonic() - asked
            directory = self.workspaces.enter(name) if name else None
            try:
                ends = await self._run_in_worker(work, directory, None if kind == BATCH else MAX_WAIT_S - waited)
            finally:
                if name:
                    self.workspaces.leave(name)
        worst = next((ended for ended in ends if not ended.succeeded), ends[-1])
        status = worst.reason or ("ok" if worst.exit_code == 0 else "failed")
        self.metrics.ended(work.language, status, waited, sum(ended.usage.wall_s for ended in ends))
        return ends

    async def _run_in_worker(self, work: Program, directory: str | None, wait_s: float | None) -> list[ProgramResult]:
        for attempt in range(MAX_WORKER_ATTEMPTS):
            try:
                worker = await self.pool.acquire(directory, wait_s, unused=attempt > 0)
            except SandboxError as error:
                raise Overloaded(str(error)) from None
            with contextlib.suppress(Unclean):  # raised before anything ran
                return await self._run_steps(worker, work)
        raise Overloaded("no worker could be made ready")

    async def _run_steps(self, worker: Worker, work: Program) -> list[ProgramResult]:
        """Run the steps in order in this worker; raises Unclean if the first was not started."""
        ends: list[ProgramResult] = []
        left, has_failed = work.within, False
        try:
            for step in work.steps:
                if has_failed and not step.always:
                    continue
                if ends:
                    worker.prepare(fresh=False)
                try:
                    if worker.state != "warm":
                        raise Unclean(worker.why)
                    ends.append(await worker.run(self._limited(step, left), work.max_output))
                except Unclean:
                    if not ends:
                        raise
                    ends.append(LOST)  # steps that have run are not run again
                left -= ends[-1].usage.wall_s
                has_failed = has_failed or not ends[-1].succeeded
        finally:
            self.pool.release(worker)
        return ends

    def _limited(self, step: ProgramStep, left: float) -> ProgramStep:
        """Limit the step to the time that is left for all steps.

        If the process limit is shared by everything that our user runs, it is raised by what runs already.
        """
        timeout = min(step.timeout, left)
        if self.pool.counts_processes:
            return step if timeout == step.timeout else replace(step, timeout=timeout)
        processes = self._others + self.settings.processes + THREADS_HEADROOM
        limits = {**step.job.get("limits", {}), "processes_of_user": processes}
        return replace(step, job={**step.job, "limits": limits}, timeout=timeout)

    async def cell(
        self, name: str, code: str, verbosity: str, timeout: float, limit: int, must_exist: bool, client: str = ""
    ) -> CellResult:
        """Run a cell of a session, which is created unless it must exist; `client` shares the slots with others.

        Raises SessionLost if it must exist and does not, Overloaded if nothing was run.
        """
        asked = time.monotonic()
        for _ in range(MAX_WORKER_ATTEMPTS):
            session, created = await self._session(name, must_exist)
            try:
                async with self.admission.slot(SESSION, client, timeout):
                    waited = time.monotonic() - asked
                    ended = await session.run(code, verbosity, timeout, limit, created, waited)
            except Unclean:
                continue  # with a new session: nothing was run in this one
            finally:
                self.sessions.release(session)
            self.metrics.ended("ipython", ended.status, waited, ended.wall_s)
            return ended
        raise Overloaded("no worker could be made ready")

    async def _session(self, name: str, must_exist: bool) -> tuple[Session, bool]:
        if self.admission.is_closed:
            raise Overloaded("the sandbox is stopping")
        wait = self.settings.queue_wait_s
        try:
            return await asyncio.wait_for(self.sessions.get(name, must_exist), wait)
        except asyncio.TimeoutError:
            raise Overloaded(f"the session was busy for {wait:g} s") from None
        except SandboxError as error:
            raise Overloaded(str(error)) from None

    # -- status -----------------------------------------------------------------------------------------------------

    def load(self) -> dict[str, Any]:
        workers = [(one.number, one.busy_s, one.executions, one.state) for one in self.pool.workers.values()]
        return {
            "host": metrics.HOST,
            "slots": self.settings.workers_max,
            "running": self.admission.running,
            "queued": self.admission.queued,
            "workers": len(workers),
            "sessions": len(self.sessions),
            "workspaces": len(self.workspaces),
            "uptime_s": round(time.monotonic() - self.started, 1),
            **self.metrics.summary(),
            "busiest": metrics.busiest(workers),
        }

    def counters(self) -> dict[str, float]:
        return {
            "refused_total": self.admission.refused,
            "workers_started_total": self.pool.started,
            "workers_lost_total": self.pool.lost,
            "ended_for_memory_total": self.guard.ended,
            "sessions_created_total": self.sessions.created,
            "sessions_evicted_total": self.sessions.evicted,
            "sessions_lost_total": self.sessions.lost,
        }


def threads_of_user(user: int) -> int:
    """Count the user's threads, as RLIMIT_NPROC does."""
    total = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == user:
                    total += len(os.listdir(f"/proc/{entry.name}/task"))
    return total
