"""The workers: a minimum is kept warm, idle ones are retired, lost ones replaced.

A worker of a session is outside the pool while the session lives; a worker of a workspace serves only that workspace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from typing import Any, Callable

from muster.process import Scope
from muster.process.file_trees import remove_tree
from muster.sandbox.engine import cgroups, gvisor, isolation
from muster.sandbox.engine.isolation import Level, Profile
from muster.sandbox.engine.orphans import kill_orphans
from muster.sandbox.engine.user_ids import NoUserIds, UserIds
from muster.sandbox.engine.worker import NOT_NEEDED, NOT_WANTED, Worker
from muster.sandbox.engine.zygote import SandboxError, Zygote, command, environment
from muster.sandbox.jail.confine import INNER_USER
from muster.sandbox.jail.gvisor import clock_difference
from muster.sandbox.settings import MAX_SLOTS, SandboxSettings

HOUSEKEEPING_INTERVAL_S = 1.0
START_BACKOFF_S = 1.0  # after a worker or the zygote could not be started
MAX_CONCURRENT_STARTS = 8  # of workers that are started ahead of need


class Pool:
    """All workers of this node, and the zygote that forks them."""

    def __init__(
        self, settings: SandboxSettings, scope: Scope, directory: str, parent: cgroups.ParentCgroup | None
    ) -> None:
        self.settings, self._scope, self._directory, self._parent = settings, scope, directory, parent
        self.zygote: Zygote | None = None
        self.level: Level | None = None
        self.workers: dict[int, Worker] = {}  # all live ones, including those of sessions
        self.started = self.lost = 0
        self.last_failure = ""
        self._warm: dict[str | None, list[Worker]] = {}
        self._profile: Profile | None = None
        self._user_ids: UserIds | None = None
        self._numbers: list[int] = []
        self._next_number = 0
        self._closing = False
        self._wake = asyncio.Event()  # wakes the housekeeper before its interval is over
        self._housekeeper: asyncio.Task[None] | None = None
        self._removals: dict[asyncio.Future[None], str | None] = {}  # with the workspace of the worker
        self._deleted_workspaces: set[str] = set()  # their directories are being removed
        self._supervisor_lock = asyncio.Lock()  # held to start a zygote or to kill orphans: never both at once
        self._zygote_replacement: asyncio.Task[None] | None = None

    # -- start ------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the zygote, find the strongest isolation level that works here, and start the first workers."""
        try:
            self._user_ids = UserIds(self.settings.first_user)
        except NoUserIds as error:
            raise SandboxError(str(error)) from None
        self.zygote = await Zygote.start(self._scope, self.settings, self._on_zygote_lost)
        first = await self._find_level()
        self.release(first)
        await asyncio.gather(*(self._start_one() for _ in range(self.settings.workers_min - 1)))
        self._housekeeper = asyncio.create_task(self._housekeeping())

    async def _find_level(self) -> Worker:
        reasons: list[str] = []
        for profile in isolation.candidates(self.settings.isolation, os.getuid() == 0):
            why = isolation.why_impossible(profile)
            if profile is isolation.GVISOR:
                why = why or gvisor.why_unusable(self._directory, self.settings.network)
            if why is None:
                self._profile = profile
                try:
                    worker = await self._start(None)
                except SandboxError as error:
                    why = str(error)
                else:
                    self.level = Level(profile, self._mechanisms(profile, worker), tuple(reasons))
                    return worker
            reasons.append(f"{profile.level} ({profile.name}): {why}")
        asked = self.settings.isolation
        more = "; --isolation process would run programs without protecting files" if asked == "auto" else ""
        raise SandboxError(f"isolation level {asked} is not available here: {'; '.join(reasons)}{more}")

    def _mechanisms(self, profile: Profile, worker: Worker) -> tuple[str, ...]:
        kinds = list(self._parent.directories) if self._parent is not None else []
        return isolation.mechanisms(
            profile, network=self.settings.network, own_user=self._user(0) is not None, cgroups=kinds, proc=worker.proc
        )

    # -- workers ----------------------------------------------------------------------------------------------------

    async def acquire(self, workspace: str | None, wait_s: float | None, unused: bool = False) -> Worker:
        """Return a warm worker; if there is none, or it must be `unused`, start one within `wait_s` seconds."""
        warm = [] if unused else self._warm.get(workspace, [])
        while warm:
            worker = warm.pop()
            if worker.state == "warm":
                self._wake_housekeeper()
                return worker
        try:
            return await asyncio.wait_for(self._start(workspace), wait_s)
        except asyncio.TimeoutError:
            raise SandboxError(f"no worker could be started within {wait_s:g} s") from None

    def release(self, worker: Worker) -> None:
        """Return a worker to the pool for the next program."""
        worker.prepare(fresh=worker.workspace is None)
        if worker.state == "warm" and not self._closing:
            self._warm.setdefault(worker.workspace, []).append(worker)
        elif worker.state != "gone":
            worker.destroy(NOT_NEEDED)

    async def _start(self, workspace: str | None) -> Worker:
        if self.zygote is None:
            raise SandboxError(f"the warm interpreter was lost and is not replaced yet {self.last_failure}".rstrip())
        if workspace is not None and self._profile is isolation.GVISOR and self._user(0) is None:
            # Its files belong to the user of the service, which is root in a sandbox; programs are not.
            raise SandboxError("at level gvisor, workspaces need a service that runs as root")
        if workspace in self._deleted_workspaces:
            raise SandboxError("the workspace was deleted")
        self._make_room()
        number = self._number()
        directory = f"{self._directory}/worker-{number}-{secrets.token_hex(8)}"  # not to be guessed by other programs
        user = self._user(number)
        cgroup = None
        worker = None
        try:
            _make_directory(directory, user)
            if self._parent is not None:
                cgroup = cgroups.make(self._parent, f"worker-{number}", *self._cgroup_limits())
            is_on_disk = workspace is not None or (self._profile is not None and self._profile.level != "full")
            worker = Worker(number, directory, workspace, cgroup, is_on_disk)
            worker.on_gone = self._on_gone
            self.workers[number] = worker
            plan = self._plan(directory, user, workspace, cgroup)
            await worker.start(await self._zygote_of(worker, plan), plan)
        except (SandboxError, OSError) as error:
            self.last_failure = str(error)
            if worker is None:
                self._numbers.append(number)
            else:
                worker.destroy(str(error))
            raise SandboxError(str(error)) from None
        self.started += 1
        return worker

    def _cgroup_limits(self) -> tuple[int, int]:
        """Return the memory in MB and the number of processes of a worker."""
        memory_mb, processes = self.settings.memory_mb, self.settings.processes
        if self._profile is not isolation.GVISOR:
            return memory_mb, processes
        host_threads = processes * gvisor.HOST_THREADS_OF_PROCESS + gvisor.OVERHEAD_PROCESSES
        return memory_mb + gvisor.OVERHEAD_MB, host_threads

    async def _zygote_of(self, worker: Worker, plan: dict[str, Any]) -> Zygote:
        """Return the zygote that forks the worker; at level gvisor a new one, in a sandbox for this worker alone."""
        assert self.zygote is not None
        runsc = gvisor.find_runsc()
        if self._profile is not isolation.GVISOR or runsc is None:
            return self.zygote
        try:
            root = gvisor.make_root(self._directory, self.zygote.facts["read_only"])
            where = gvisor.write_bundle(root, plan, command(self.settings), environment(self.settings))
            sandbox = gvisor.command(runsc, where, plan, os.getuid() == 0)
            zygote = await Zygote.start(self._scope, self.settings, lambda: None, sandbox, worker.contain)
        except BaseException:
            worker.destroy("its sandbox could not be started")
            raise
        if worker.state == "gone":
            zygote.close()
            raise SandboxError(f"a worker could not be started: {worker.why}")
        return zygote

    def _make_room(self) -> None:
        """End the longest idle warm worker if there are as many workers as allowed, whatever they were started for."""
        while self.count_outside_sessions >= self.settings.workers_min + self.settings.workers_max:
            warm = [one for waiting in self._warm.values() for one in waiting if one.state == "warm"]
            if not warm:
                return  # all are busy: their number is that of the slots
            min(warm, key=lambda one: one.idle_since).destroy(NOT_NEEDED)

    def _plan(self, directory: str, user: int | None, workspace: str | None, cgroup: Any) -> dict[str, Any]:
        assert self._profile is not None
        settings = self.settings
        if workspace is not None:
            user = os.stat(f"{workspace}/home", follow_symlinks=False).st_uid if user is not None else None
        if self._profile is isolation.GVISOR and user is None:
            user = INNER_USER
        return {
            "profile": self._profile.name,
            "memory_mb": settings.memory_mb,
            "processes": settings.processes,
            "open_files": settings.open_files,
            "file_mb": settings.file_mb,
            "scratch_mb": settings.scratch_mb,
            "network": settings.network,
            "directory": directory,
            "user": user,
            "workspace": workspace,
            "counts_processes": self.counts_processes,
            "cgroups": [] if cgroup is None else cgroup.directories,
            "clock_difference": clock_difference(),
        }

    @property
    def first_user_of_workspaces(self) -> int | None:
        return self._user(MAX_SLOTS)

    @property
    def session_backend(self) -> str:
        return "ipython" if self.zygote is not None and self.zygote.facts["ipython"] else "repl"

    @property
    def counts_processes(self) -> bool:
        assert self._profile is not None
        return isolation.counts_processes(self._profile, self._user(0) is not None)

    def _user(self, number: int) -> int | None:
        """Return a separate user id for a worker, if we may change to it (not in a user namespace)."""
        first = self._user_ids.first if self._user_ids is not None else None
        return None if first is None or self._profile is isolation.USER else first + number

    def _number(self) -> int:
        if self._numbers:
            return self._numbers.pop()
        self._next_number += 1
        return self._next_number

    def _on_gone(self, worker: Worker) -> None:
        self.workers.pop(worker.number, None)
        warm = self._warm.get(worker.workspace, [])
        if worker in warm:
            warm.remove(worker)
        if worker.why not in (NOT_NEEDED, NOT_WANTED):
            self.lost += 1
        if worker.cgroup is not None:
            worker.cgroup.close()
        removal = asyncio.ensure_future(self._clean_up(worker))
        self._track_removal(removal, worker.workspace)
        self._wake_housekeeper()

    def _track_removal(self, removal: asyncio.Future[None], workspace: str | None) -> None:
        self._removals[removal] = workspace
        removal.add_done_callback(self._removals.pop)

    async def _clean_up(self, worker: Worker) -> None:
        """Remove what a worker left, in threads since its processes may take time to exit; then its number is free."""
        loop = asyncio.get_running_loop()
        is_gone = await loop.run_in_executor(None, worker.wait_until_gone)
        if self._profile is not None and self._profile.level not in ("full", "gvisor") and worker.why != NOT_NEEDED:
            async with self._supervisor_lock:
                known = {one.pid for one in self.workers.values()}
                known |= {self.zygote.pid} if self.zygote is not None else set()
                await loop.run_in_executor(None, kill_orphans, self._scope, known)
        await loop.run_in_executor(None, self._remove, worker)
        if is_gone:  # else its processes still have the user id of that number
            self._numbers.append(worker.number)

    def remove_workspace(self, directory: str, then: Callable[[], None]) -> None:
        """Kill all workers of a workspace and their programs; then remove its directory and call `then`."""
        self._deleted_workspaces.add(directory)
        for worker in [one for one in self.workers.values() if one.workspace == directory]:
            worker.destroy(NOT_WANTED, "deleted")
        ending = [removal for removal, workspace in self._removals.items() if workspace == directory]
        self._track_removal(asyncio.ensure_future(self._remove_workspace(directory, ending, then)), None)

    async def _remove_workspace(
        self, directory: str, ending: list[asyncio.Future[None]], then: Callable[[], None]
    ) -> None:
        if ending:
            await asyncio.wait(ending)
        await asyncio.get_running_loop().run_in_executor(None, remove_tree, directory)
        self._deleted_workspaces.discard(directory)
        then()

    def _remove(self, worker: Worker) -> None:
        if worker.cgroup is not None:
            cgroups.remove(worker.cgroup.directories)
        remove_tree(worker.directory)

    # -- housekeeping -----------------------------------------------------------------------------------------------

    def _wake_housekeeper(self) -> None:
        self._wake.set()

    async def _housekeeping(self) -> None:
        """Keep enough warm workers and retire those that have been idle for too long."""
        while not self._closing:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), HOUSEKEEPING_INTERVAL_S)
            self._wake.clear()
            self._retire()
            missing = min(MAX_CONCURRENT_STARTS, self.settings.workers_min - self.count)
            if missing > 0 and self.zygote is not None:
                started = await asyncio.gather(*(self._start_one() for _ in range(missing)))
                if not all(started):
                    await asyncio.sleep(START_BACKOFF_S)

    @property
    def count(self) -> int:
        """The number of workers that belong neither to sessions nor to workspaces."""
        return sum(1 for worker in self.workers.values() if worker.workspace is None and not worker.in_session)

    def occupied(self) -> list[Worker]:
        """Return the workers with a program or a session."""
        return [worker for worker in self.workers.values() if worker.state == "running"]

    @property
    def count_outside_sessions(self) -> int:
        """The number of workers that do not belong to sessions."""
        return sum(1 for worker in self.workers.values() if not worker.in_session)

    async def _start_one(self) -> bool:
        try:
            worker = await self._start(None)
        except SandboxError:
            if self._housekeeper is None:
                raise
            return False
        self.release(worker)
        return True

    def _retire(self) -> None:
        oldest = time.monotonic() - self.settings.idle_s
        for workspace, warm in self._warm.items():
            spare = self.count - self.settings.workers_min if workspace is None else len(warm)
            idle = [worker for worker in warm if worker.idle_since < oldest]
            for worker in idle[: max(0, spare)]:
                worker.destroy(NOT_NEEDED)
        self._warm = {workspace: warm for workspace, warm in self._warm.items() if warm}

    def _on_zygote_lost(self) -> None:
        self.zygote = None
        if not self._closing:
            self._zygote_replacement = asyncio.create_task(self._replace_zygote())

    async def _replace_zygote(self) -> None:
        while self.zygote is None and not self._closing:
            try:
                async with self._supervisor_lock:
                    self.zygote = await Zygote.start(self._scope, self.settings, self._on_zygote_lost)
            except Exception as error:  # of any kind: without a zygote no program can run
                self.last_failure = str(error)
                await asyncio.sleep(START_BACKOFF_S)
        self._wake_housekeeper()

    # -- end --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Kill all workers and remove their directories. The scope reaps the processes."""
        self._closing = True
        for task in (self._housekeeper, self._zygote_replacement):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for worker in list(self.workers.values()):
            worker.destroy(NOT_NEEDED)
        if self.zygote is not None:
            self.zygote.close()
        while self._removals:
            await asyncio.gather(*self._removals, return_exceptions=True)
        if self._user_ids is not None:
            self._user_ids.close()


def _make_directory(directory: str, user: int | None) -> None:
    """Create a worker's directory with the parts that are its scratch at level floor."""
    os.mkdir(directory, 0o711)
    for name in ("home", "tmp"):
        os.mkdir(f"{directory}/{name}", 0o700)
        if user is not None:
            os.chown(f"{directory}/{name}", user, user)
