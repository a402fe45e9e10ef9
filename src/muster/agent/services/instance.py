"""The life of one instance of a service on its node: started, probed, started again where that is wanted, ended.

Every start has a scope of its own, which is closed before the next one begins: nothing of an earlier start holds a
port, a file or a GPU. The states that are told to the leader are those of lifecycle/services.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.agent.private_dir import make_private
from muster.agent.services import sandbox
from muster.agent.services.launch import Launch, Where, endpoints, launch_of, probe_of
from muster.agent.services.model import ALWAYS, NEVER, SANDBOX, ServiceDefinition
from muster.agent.services.ports import PortLease, take
from muster.agent.services.probes import ANSWER_S, Probe, get_record
from muster.exit_codes import NOT_STARTED
from muster.lifecycle.services import ServiceState
from muster.process import Exit, Log, ManagedProcess, Scope, SpawnError
from muster.process.memory_file import memory_file

logger = logging.getLogger(__name__)

GRACE_S = 5.0  # between TERM and KILL, at the end of a cycle or run
LEFTOVER_GRACE_S = 0.5  # for what a service left behind when it ended
LOG_BYTES = 64 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # between two probes
CONFIRM_S = 0.1  # between two looks at whether a sandbox serves all its members
LOAD_S = 5.0  # how often a sandbox is asked for its load
TELL_AFTER_S = 1.0  # why it is not ready is of interest when it takes time
BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0  # before a restart; doubled each time
PORT_TRIES = 3  # when others take the ports that it was given


class ServiceInstance:
    """Runs from `start` to `close`; what becomes of it is told."""

    def __init__(
        self,
        service: ServiceDefinition,
        where: Where,
        directory: str,
        log: str,
        leases: dict[str, PortLease],
        tell: Callable[..., None],
    ) -> None:
        """`directory` is made anew for each start; `leases` by the ports' names; `tell` sends the leader a word."""
        self._service, self._where, self._directory = service, where, directory
        self._log = Log(log, LOG_BYTES)
        self._leases, self._tell_leader = leases, tell
        self._closing = asyncio.Event()
        self._work: asyncio.Future[None] | None = None
        self._confirming: asyncio.Future[None] | None = None
        self._was_ready = False  # at any time
        self._is_ready_now = False  # in this start
        self._restarts = 0
        self.members: tuple[int, Sequence[str]] | None = None  # of a sandbox: who the nodes are

    @property
    def ports(self) -> dict[str, int]:
        return {name: lease.number for name, lease in self._leases.items()}

    def start(self) -> None:
        self._work = asyncio.ensure_future(self._live())
        self._work.add_done_callback(self._ended)

    async def close(self) -> None:
        """Returns when nothing of it is left."""
        self._closing.set()
        if self._confirming is not None:
            self._confirming.cancel()
        if self._work is not None:
            await asyncio.wait([self._work])
        for lease in self._leases.values():
            lease.release()

    async def members_are(self, version: int, endpoints: Sequence[str]) -> None:
        """Told anew whenever it changes."""
        self.members = version, endpoints
        try:
            await _off_loop(self._write_members)
        except OSError as error:  # a full disk; or a start that is being cleared, and the next one writes them
            logger.warning("service %s: its members could not be written: %s", self._service.name, error)
        if self._confirming is not None:
            self._confirming.cancel()
        self._confirming = asyncio.ensure_future(self._confirm(version))

    async def _confirm(self, version: int) -> None:
        """Tell the leader when this node's endpoint serves those members."""
        while not self._closing.is_set():
            found = await get_record(sandbox.LOOPBACK, self.ports[sandbox.HTTP], "/gateway")
            if found is not None and found.get("version") == version:
                self._tell_leader("service_serves", service=self._service.name, version=version)
                return
            await asyncio.sleep(CONFIRM_S)

    # -- one start after the other ------------------------------------------------------------------------------

    async def _live(self) -> None:
        tries = 1
        while not self._closing.is_set():
            try:
                exit = await self._once()
            except (OSError, SpawnError) as error:
                if not self._closing.is_set():
                    self._tell(ServiceState.FAILED, f"could not be started: {error}")
                return
            if self._closing.is_set():
                return
            stolen = [] if self._was_ready else self._stolen()
            if stolen and tries < PORT_TRIES and self._move_ports(stolen):
                tries += 1
            elif not await self._goes_on(exit, stolen):
                return

    async def _goes_on(self, exit: Exit, stolen: list[str]) -> bool:
        """Whether it is to be started again; else the leader has been told why not."""
        service = self._service
        if not self._was_ready:
            ports = ", ".join(f"{self._leases[name].number} ({name})" for name in stolen)
            taken = f"; somebody else listens on port {ports}" if stolen else ""
            self._tell(ServiceState.FAILED, f"{exit} before it was ready{taken}")
            return False
        if exit.code == 0 and self._is_ready_now and service.restart != ALWAYS and service.kind != SANDBOX:
            self._tell(ServiceState.ENDED, str(exit))
            return False
        if service.restart == NEVER or self._restarts >= service.max_restarts:
            spent = "restart: never" if service.restart == NEVER else f"max_restarts: {service.max_restarts}"
            self._tell(ServiceState.FAILED, f"{exit}, and may not be started again ({spent})")
            return False
        self._restarts += 1
        self._tell(ServiceState.RESTARTING, str(exit))
        with contextlib.suppress(asyncio.TimeoutError):
            pause = min(BACKOFF_S * 2 ** (self._restarts - 1), LONGEST_BACKOFF_S, service.deadline / 4)
            await asyncio.wait_for(self._closing.wait(), pause)
        return True

    def _stolen(self) -> list[str]:
        """Ports on which somebody listens, now that nothing of this service is left."""
        return [name for name, lease in self._leases.items() if lease.taken()]

    def _move_ports(self, stolen: list[str]) -> bool:
        """To others; one that the job fixes cannot be moved."""
        if any(self._leases[name].pinned for name in stolen):
            return False
        for name in stolen:
            number = self._leases[name].number
            self._leases[name].release()
            self._leases[name] = take(f"{self._directory}/{name}/{number}", None, self._where.avoid)
            self._tell(ServiceState.STARTING, f"port {number} ({name}) was taken meanwhile; it moves to another")
        return True

    # -- one start ----------------------------------------------------------------------------------------------

    async def _once(self) -> Exit:
        """From start to end; nothing of it is left then."""
        self._is_ready_now = False
        scope = Scope(f"service {self._service.name}", directories=[self._directory])
        probing: asyncio.Future[None] | None = None
        await scope.open()
        try:
            await _off_loop(self._prepare)
            launch = launch_of(self._service, self._where, self.ports, self._directory)
            probe = probe_of(
                self._service,
                self._where,
                self.ports,
                self._directory,
                self._log.path,
                lambda argv: self._run(scope, argv, launch.env),
            )
            process = await self._spawn(scope, launch)
            probing = asyncio.ensure_future(self._watch(probe))
            probing.add_done_callback(self._probed)
            exit = await self._until_over(process)
            if exit.code == 0 and not probing.done() and await probe() is None:
                self._is_ready()  # it did what it was for, and was quicker than the next look
            return exit
        finally:
            if probing is not None:
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)
            await scope.close(GRACE_S if self._closing.is_set() else LEFTOVER_GRACE_S)
            await _off_loop(self._remove_directory)

    async def _spawn(self, scope: Scope, launch: Launch) -> ManagedProcess:
        for lease in self._leases.values():
            lease.give()
        # On no disk, since it may hold a token.
        stdin = None if launch.stdin is None else memory_file("muster-settings", [launch.stdin])
        try:
            return await scope.spawn(launch.argv, env=launch.env, cwd=self._where.workdir, stdin=stdin, log=self._log)
        finally:
            if stdin is not None:
                os.close(stdin)

    async def _until_over(self, process: ManagedProcess) -> Exit:
        """It ended, or is to end: then whoever closes the scope ends it."""
        waiting: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(process.wait()),
            asyncio.ensure_future(self._closing.wait()),
        ]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for future in waiting:
            future.cancel()
        return process.exit or Exit()

    async def _watch(self, probe: Probe) -> None:
        await self._until_ready(probe)
        while self._service.kind == SANDBOX:
            await asyncio.sleep(LOAD_S)
            load = await get_record(sandbox.LOOPBACK, self.ports[sandbox.HTTP], "/load")
            if load is not None:
                self._tell_leader("service_load", service=self._service.name, load=load)

    async def _until_ready(self, probe: Probe) -> None:
        begun, pause, said = time.monotonic(), FIRST_PAUSE_S, ""
        while (why := await probe()) is not None:
            if why != said and time.monotonic() - begun >= TELL_AFTER_S:
                said = why
                self._tell(ServiceState.STARTING, why)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)
        self._is_ready()

    def _is_ready(self) -> None:
        self._was_ready = self._is_ready_now = True
        self._tell(ServiceState.READY)

    def _probed(self, probing: asyncio.Future[None]) -> None:
        """A defect in a probe is why the service is not ready."""
        if not probing.cancelled() and probing.exception() is not None:
            self._tell(ServiceState.STARTING, f"its probe failed: {probing.exception()!r}")

    async def _run(self, scope: Scope, argv: Sequence[str], env: Mapping[str, str]) -> int:
        """A probe's command, which may not take long."""
        try:
            process = await scope.spawn(argv, env=env, cwd=self._where.workdir)
        except SpawnError:
            return NOT_STARTED
        try:
            exit = await asyncio.wait_for(process.wait(), ANSWER_S)
        except asyncio.TimeoutError:
            process.signal(9)
            exit = await process.wait()
        return exit.shell_code

    # -- files and words ----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        make_private(os.path.dirname(self._directory))
        shutil.rmtree(self._directory, ignore_errors=True)
        os.mkdir(self._directory, mode=0o700)
        os.makedirs(os.path.dirname(self._log.path), exist_ok=True)
        self._write_members()

    def _write_members(self) -> None:
        if self.members is not None and self._service.kind == SANDBOX and os.path.isdir(self._directory):
            sandbox.write_members(self._directory, *self.members)

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # others of this run may still use it
            os.rmdir(os.path.dirname(self._directory))

    def _tell(self, state: ServiceState, words: str = "") -> None:
        url, between = endpoints(self._service, self._where.address, self.ports)
        self._tell_leader(
            "service",
            service=self._service.name,
            state=state.value,
            words=words,
            url=url,
            between=between,
            restarts=self._restarts,
        )

    def _ended(self, work: asyncio.Future[None]) -> None:
        """A defect must not end in a silent wait for the deadline."""
        if not work.cancelled() and work.exception() is not None:
            self._tell(ServiceState.FAILED, f"could not be kept: {work.exception()!r}")


async def _off_loop(work: Callable[..., Any], *args: Any) -> Any:
    """File operations, on a thread: the filesystem may pause for longer than the leader waits for a heartbeat."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)
