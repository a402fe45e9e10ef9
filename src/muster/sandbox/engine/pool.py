"""The workers: a minimum kept warm, a maximum, idle ones retired, lost ones replaced.

Workers of sessions have left the pool for as long as the session lives; those of a workspace serve that one alone.
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
from muster.sandbox.engine import cgroups, isolation
from muster.sandbox.engine.isolation import Level, Profile
from muster.sandbox.engine.orphans import end_orphans
from muster.sandbox.engine.worker import NOT_NEEDED, NOT_WANTED, Worker
from muster.sandbox.engine.zygote import SandboxError, Zygote
from muster.sandbox.settings import MAX_SLOTS, SandboxSettings

LOOK_S = 1.0
BACKOFF_S = 1.0  # after a worker, or the zygote, could not be started
AT_ONCE = 8  # workers that are started at the same time, ahead of need


class Pool:
    """All workers of this node, and the zygote that they come from."""

    def __init__(self, settings: SandboxSettings, scope: Scope, place: str, parent: cgroups.Parent | None) -> None:
        self.settings, self._scope, self._place, self._parent = settings, scope, place, parent
        self.zygote: Zygote | None = None
        self.level: Level | None = None
        self.workers: dict[int, Worker] = {}  # all that live, of sessions too
        self.started = self.lost = 0
        self.last_failure = ""
        self._warm: dict[str | None, list[Worker]] = {}
        self._recipe: Profile | None = None
        self._first_user = isolation.first_user(settings.first_user, isolation.users_that_exist())
        self._numbers: list[int] = []
        self._next_number = 0
        self._closing = False
        self._wanted = asyncio.Event()
        self._housekeeper: asyncio.Task[None] | None = None
        self._removals: dict[asyncio.Future[None], str | None] = {}  # with the workspace that a worker was in
        self._ended_workspaces: set[str] = set()  # those whose directories are being removed
        self._at_supervisor = asyncio.Lock()  # either a zygote is started there, or orphans are ended
        self._zygote_again: asyncio.Task[None] | None = None

    # -- coming up --------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the zygote, find the strongest level that works here, start the first workers."""
        self.zygote = await Zygote.start(self._scope, self.settings, self._on_zygote_lost)
        first = await self._find_level()
        self.give(first)
        await asyncio.gather(*(self._start_one() for _ in range(self.settings.workers_min - 1)))
        self._housekeeper = asyncio.create_task(self._keep_house())

    async def _find_level(self) -> Worker:
        reasons: list[str] = []
        for recipe in isolation.candidates(self.settings.isolation, os.getuid() == 0):
            why = isolation.impossible(recipe)
            if why is None:
                self._recipe = recipe
                try:
                    worker = await self._start(None)
                except SandboxError as error:
                    why = str(error)
                else:
                    self.level = Level(recipe, self._mechanisms(recipe, worker), tuple(reasons))
                    return worker
            reasons.append(f"{recipe.level} ({recipe.name}): {why}")
        asked = self.settings.isolation
        more = "; --isolation process would run programs without protecting files" if asked == "auto" else ""
        raise SandboxError(f"no isolation at level {asked} can be had here: {'; '.join(reasons)}{more}")

    def _mechanisms(self, recipe: Profile, worker: Worker) -> tuple[str, ...]:
        kinds = list(self._parent.directories) if self._parent is not None else []
        return isolation.mechanisms(
            recipe, network=self.settings.network, own_user=self._user(0) is not None, cgroups=kinds, proc=worker.proc
        )

    # -- workers ----------------------------------------------------------------------------------------------------

    async def take(self, workspace: str | None, wait_s: float | None, unused: bool = False) -> Worker:
        """A warm worker; started now if none is, or if it must be `unused`, if that takes no longer than `wait_s`."""
        warm = [] if unused else self._warm.get(workspace, [])
        while warm:
            worker = warm.pop()
            if worker.state == "warm":
                self._look_soon()
                return worker
        try:
            return await asyncio.wait_for(self._start(workspace), wait_s)
        except asyncio.TimeoutError:
            raise SandboxError(f"no worker could be started within {wait_s:g} s") from None

    def give(self, worker: Worker) -> None:
        """Back, for the next program."""
        worker.prepare(fresh=worker.workspace is None)
        if worker.state == "warm" and not self._closing:
            self._warm.setdefault(worker.workspace, []).append(worker)
        elif worker.state != "gone":
            worker.destroy(NOT_NEEDED)

    async def _start(self, workspace: str | None) -> Worker:
        if self.zygote is None:
            raise SandboxError(f"the warm interpreter was lost and is not back yet {self.last_failure}".rstrip())
        if workspace in self._ended_workspaces:
            raise SandboxError("the workspace was deleted")
        number = self._number()
        place = f"{self._place}/worker-{number}-{secrets.token_hex(8)}"  # a program of another must not guess it
        user = self._user(number)
        cgroup = None
        worker = None
        try:
            _make_place(place, user)
            if self._parent is not None:
                settings = self.settings
                cgroup = cgroups.make(self._parent, f"worker-{number}", settings.memory_mb, settings.processes)
            is_on_disk = workspace is not None or (self._recipe is not None and self._recipe.level != "full")
            worker = Worker(number, place, workspace, cgroup, is_on_disk)
            worker.on_gone = self._on_gone
            self.workers[number] = worker
            await worker.start(self.zygote, self._plan(place, user, workspace, cgroup))
        except (SandboxError, OSError) as error:
            self.last_failure = str(error)
            if worker is None:
                self._numbers.append(number)
            else:
                worker.destroy(str(error))
            raise SandboxError(str(error)) from None
        self.started += 1
        return worker

    def _plan(self, place: str, user: int | None, workspace: str | None, cgroup: Any) -> dict[str, Any]:
        assert self._recipe is not None
        settings = self.settings
        if workspace is not None:
            user = os.stat(f"{workspace}/home", follow_symlinks=False).st_uid if user is not None else None
        return {
            "recipe": self._recipe.name,
            "memory_mb": settings.memory_mb,
            "processes": settings.processes,
            "open_files": settings.open_files,
            "file_mb": settings.file_mb,
            "scratch_mb": settings.scratch_mb,
            "network": settings.network,
            "place": place,
            "user": user,
            "workspace": workspace,
            "counts_processes": self.counts_processes,
            "cgroups": [] if cgroup is None else cgroup.directories,
        }

    @property
    def first_user_of_workspaces(self) -> int | None:
        return self._user(MAX_SLOTS)

    @property
    def session_backend(self) -> str:
        return "ipython" if self.zygote is not None and self.zygote.facts["ipython"] else "repl"

    @property
    def counts_processes(self) -> bool:
        assert self._recipe is not None
        return isolation.counts_processes(self._recipe, self._user(0) is not None)

    def _user(self, number: int) -> int | None:
        """A user that nobody else is, if we may become one; in a user namespace we stay who we are."""
        is_root = os.getuid() == 0 and self._recipe is not isolation.USER
        return self._first_user + number if is_root and self._first_user is not None else None

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
        self._keep_until_done(removal, worker.workspace)
        self._look_soon()

    def _keep_until_done(self, removal: asyncio.Future[None], workspace: str | None) -> None:
        self._removals[removal] = workspace
        removal.add_done_callback(self._removals.pop)

    async def _clean_up(self, worker: Worker) -> None:
        """In threads, as its processes may take a moment to be gone; its number is free when nothing of it is left."""
        loop = asyncio.get_running_loop()
        is_gone = await loop.run_in_executor(None, worker.wait_until_gone)
        if self._recipe is not None and self._recipe.level != "full" and worker.why != NOT_NEEDED:
            async with self._at_supervisor:
                known = {one.pid for one in self.workers.values()}
                known |= {self.zygote.pid} if self.zygote is not None else set()
                await loop.run_in_executor(None, end_orphans, self._scope, known)
        await loop.run_in_executor(None, self._remove, worker)
        if is_gone:  # else what is left of it is still the user of that number
            self._numbers.append(worker.number)

    def remove_workspace(self, directory: str, then: Callable[[], None]) -> None:
        """End all workers of a workspace with what runs in them; then remove its directory, and call `then`."""
        self._ended_workspaces.add(directory)
        for worker in [one for one in self.workers.values() if one.workspace == directory]:
            worker.destroy(NOT_WANTED, "deleted")
        ending = [removal for removal, workspace in self._removals.items() if workspace == directory]
        self._keep_until_done(asyncio.ensure_future(self._remove_workspace(directory, ending, then)), None)

    async def _remove_workspace(
        self, directory: str, ending: list[asyncio.Future[None]], then: Callable[[], None]
    ) -> None:
        if ending:
            await asyncio.wait(ending)
        await asyncio.get_running_loop().run_in_executor(None, remove_tree, directory)
        self._ended_workspaces.discard(directory)
        then()

    def _remove(self, worker: Worker) -> None:
        if worker.cgroup is not None:
            cgroups.remove(worker.cgroup.directories)
        remove_tree(worker.place)

    # -- housekeeping -----------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        self._wanted.set()

    async def _keep_house(self) -> None:
        """Enough warm workers, and not too many for too long."""
        while not self._closing:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), LOOK_S)
            self._wanted.clear()
            self._retire()
            missing = min(AT_ONCE, self.settings.workers_min - self.count)
            if missing > 0 and self.zygote is not None:
                started = await asyncio.gather(*(self._start_one() for _ in range(missing)))
                if not all(started):
                    await asyncio.sleep(BACKOFF_S)

    @property
    def count(self) -> int:
        """Workers of the pool: neither of sessions nor of workspaces."""
        return sum(1 for worker in self.workers.values() if worker.workspace is None and not worker.of_session)

    async def _start_one(self) -> bool:
        try:
            worker = await self._start(None)
        except SandboxError:
            if self._housekeeper is None:
                raise
            return False
        self.give(worker)
        return True

    def _retire(self) -> None:
        old = time.monotonic() - self.settings.idle_s
        for workspace, warm in self._warm.items():
            spare = self.count - self.settings.workers_min if workspace is None else len(warm)
            idle = [worker for worker in warm if worker.idle_since < old]
            for worker in idle[: max(0, spare)]:
                worker.destroy(NOT_NEEDED)
        self._warm = {workspace: warm for workspace, warm in self._warm.items() if warm}

    def _on_zygote_lost(self) -> None:
        self.zygote = None
        if not self._closing:
            self._zygote_again = asyncio.create_task(self._replace_zygote())

    async def _replace_zygote(self) -> None:
        while self.zygote is None and not self._closing:
            try:
                async with self._at_supervisor:
                    self.zygote = await Zygote.start(self._scope, self.settings, self._on_zygote_lost)
            except Exception as error:  # whatever it is, without a zygote there is no sandbox
                self.last_failure = str(error)
                await asyncio.sleep(BACKOFF_S)
        self._look_soon()

    # -- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End all workers; their places are gone when this returns. Processes are the scope's."""
        self._closing = True
        for task in (self._housekeeper, self._zygote_again):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for worker in list(self.workers.values()):
            worker.destroy(NOT_NEEDED)
        if self.zygote is not None:
            self.zygote.close()
        while self._removals:
            await asyncio.gather(*self._removals, return_exceptions=True)


def _make_place(place: str, user: int | None) -> None:
    """A directory of the worker's own, with what the floor's scratch consists of."""
    os.mkdir(place, 0o711)
    for name in ("home", "tmp"):
        os.mkdir(f"{place}/{name}", 0o700)
        if user is not None:
            os.chown(f"{place}/{name}", user, user)
