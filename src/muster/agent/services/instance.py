"""One instance of a service on its node: start, readiness probe, restarts, stop.

Every start has a separate scope, which is closed before the next start: no process of an earlier start holds a port, a
file or a GPU. The states reported to the leader are those of lifecycle/services.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.agent.control.codec import Message
from muster.agent.control.messages import ServiceLoad, ServiceServes, ServiceStatus
from muster.agent.event_loop import running_now
from muster.agent.private_dir import make_private_child
from muster.agent.service_model import ALWAYS, NEVER, ServiceDefinition
from muster.agent.services import sandbox
from muster.agent.services.launch import (
    InstanceContext,
    InstanceFiles,
    InstanceLaunch,
    MemberServer,
    build_launch,
    build_probe,
    endpoints,
)
from muster.agent.services.probes import PROBE_TIMEOUT_S, Probe, get_record
from muster.exit_codes import NOT_STARTED
from muster.lifecycle.services import ServiceState
from muster.ports.socket_leases import PortLease, take
from muster.process import Exit, Log, ManagedProcess, Scope, SpawnError
from muster.process.memory_file import memory_file
from muster.process.scope import LEFTOVER_GRACE_S
from muster.rundir import make_private_dirs

logger = logging.getLogger(__name__)

STOP_GRACE_S = 5.0  # between TERM and KILL, at the end of a cycle or run
MAX_LOG_BYTES = 128 << 20  # of each instance
MIN_PROBE_INTERVAL_S, MAX_PROBE_INTERVAL_S = 0.05, 1.0  # between two probes
MEMBERS_POLL_S = 0.1  # interval of polls whether a sandbox or an endpoint serves all its members
LOAD_POLL_S = 5.0  # interval of polls of the load of a sandbox or an endpoint
LOADS_PER_SECOND_MAX = 200.0  # that the leader gets from all nodes: a large job reports its load less often
REPORT_REASON_AFTER_S = 1.0  # from then on the leader is sent the reason why the service is not ready
RESTART_BACKOFF_S, MAX_RESTART_BACKOFF_S = 0.5, 30.0  # before a restart; doubled each time
PORT_ATTEMPTS = 3  # starts with other ports, if another program took the leased ones


class ServiceInstance:
    """Runs from `start` to `close` and reports every change of state to the leader."""

    def __init__(
        self,
        service: ServiceDefinition,
        context: InstanceContext,
        files: InstanceFiles,
        leases: dict[str, PortLease],
        send: Callable[[Message], None],
        cycle: int,
    ) -> None:
        """`leases` are by port name; `send` sends a message to the leader."""
        self._service, self._context, self._directory = service, context, files.directory
        self._member_server = MemberServer.of(service, context.token) if service.has_members else None
        self._log = Log(files.log, MAX_LOG_BYTES)
        self._leases, self._send, self._cycle = leases, send, cycle
        self._closing = asyncio.Event()
        self._task: asyncio.Future[None] | None = None
        self._confirm_task: asyncio.Future[None] | None = None
        self._was_ready = False  # in any start
        self._ready_now = False  # in this start
        self._restarts = 0
        self.members: tuple[int, Sequence[str]] | None = None  # version and URLs, of a service that has members

    @property
    def ports(self) -> dict[str, int]:
        return {name: lease.number for name, lease in self._leases.items()}

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._on_task_done)

    async def close(self) -> None:
        """Stop the instance; return when all its processes are dead and its directory is removed."""
        self._closing.set()
        if self._confirm_task is not None:
            self._confirm_task.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
        for lease in self._leases.values():
            lease.release()

    async def set_members(self, version: int, endpoints: Sequence[str]) -> None:
        """Give the service its current members, and notify the leader once it serves them."""
        self.members = version, endpoints
        try:
            await _off_loop(self._write_members)
        except OSError as error:  # a full disk; or the directory is being removed, and the next start writes them
            logger.warning("service %s: its members could not be written: %s", self._service.name, error)
        if self._confirm_task is not None:
            self._confirm_task.cancel()
        self._confirm_task = asyncio.ensure_future(self._confirm(version))

    async def _confirm(self, version: int) -> None:
        """Notify the leader when this node's endpoint serves that version of the members."""
        while not self._closing.is_set():
            server = self._member_server
            if server is None:
                return
            if server.serves(await self._get_record(server, server.members_path), version):
                self._send(ServiceServes(self._service.name, version, self._cycle))
                return
            await asyncio.sleep(MEMBERS_POLL_S)

    async def _get_record(self, server: MemberServer, path: str) -> dict[str, Any] | None:
        return await get_record(sandbox.LOOPBACK, self.ports[server.port_name], path, server.token)

    # -- restarts -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        tries = 1
        while not self._closing.is_set():
            try:
                exit = await self._run_once()
            except (OSError, SpawnError) as error:
                if not self._closing.is_set():
                    self._report(ServiceState.FAILED, f"could not be started: {error}")
                return
            if self._closing.is_set():
                return
            stolen = [] if self._was_ready else self._stolen_ports()
            if stolen and tries < PORT_ATTEMPTS and self._move_ports(stolen):
                tries += 1
            elif not await self._handle_exit(exit, stolen):
                return

    async def _handle_exit(self, exit: Exit, stolen: list[str]) -> bool:
        """Report the exit; return whether to start again, after the backoff."""
        service = self._service
        if not self._was_ready:
            ports = ", ".join(f"{self._leases[name].number} ({name})" for name in stolen)
            taken = f"; another program listens on port {ports}" if stolen else ""
            self._report(ServiceState.FAILED, f"{exit} before it was ready{taken}")
            return False
        if exit.code == 0 and self._ready_now and service.restart != ALWAYS and not service.has_members:
            self._report(ServiceState.ENDED, str(exit))
            return False
        if service.restart == NEVER or self._restarts >= service.max_restarts:
            spent = "restart: never" if service.restart == NEVER else f"max_restarts: {service.max_restarts}"
            self._report(ServiceState.FAILED, f"{exit}, and may not be started again ({spent})")
            return False
        self._restarts += 1
        self._report(ServiceState.RESTARTING, str(exit))
        with contextlib.suppress(asyncio.TimeoutError):
            backoff = min(RESTART_BACKOFF_S * 2 ** (self._restarts - 1), MAX_RESTART_BACKOFF_S, service.deadline / 4)
            await asyncio.wait_for(self._closing.wait(), backoff)
        return True

    def _stolen_ports(self) -> list[str]:
        """Return the names of ports on which another program listens; call it when the service does not run."""
        return [name for name, lease in self._leases.items() if lease.taken()]

    def _move_ports(self, stolen: list[str]) -> bool:
        """Lease other ports; return False if the job fixes one of them."""
        if any(self._leases[name].pinned for name in stolen):
            return False
        for name in stolen:
            number = self._leases[name].number
            self._leases[name].release()
            self._leases[name] = take(f"{self._directory}/{name}/{number}", None, self._context.avoid)
            self._report(ServiceState.STARTING, f"another program took port {number} ({name}); trying another port")
        return True

    # -- one start ----------------------------------------------------------------------------------------------

    async def _run_once(self) -> Exit:
        """Run one start until it exits or `close` is called; none of its processes is left then."""
        self._ready_now = False
        scope = Scope(f"service {self._service.name}", directories=[self._directory])
        probing: asyncio.Future[None] | None = None
        await scope.open()
        try:
            await _off_loop(self._prepare)
            launch = build_launch(self._service, self._context, self.ports, self._directory)
            probe = await _off_loop(  # it reads the end of the log
                build_probe,
                self._service,
                self._context,
                self.ports,
                self._directory,
                self._log.path,
                lambda argv: self._run_probe_command(scope, argv, launch.env),
            )
            process = await self._spawn(scope, launch)
            probing = asyncio.ensure_future(self._probe_loop(probe))
            probing.add_done_callback(self._on_probe_done)
            exit = await self._wait_for_end(process)
            if exit.code == 0 and not probing.done() and await probe() is None:
                self._mark_ready()  # it completed its work before the next probe
            return exit
        finally:
            if probing is not None:
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)
            await scope.close(STOP_GRACE_S if self._closing.is_set() else LEFTOVER_GRACE_S)
            await _off_loop(self._remove_directory)

    async def _spawn(self, scope: Scope, launch: InstanceLaunch) -> ManagedProcess:
        for lease in self._leases.values():
            lease.give()
        # In memory and not on a disk, since it may hold a token.
        stdin = None if launch.stdin is None else memory_file("muster-settings", [launch.stdin])
        try:
            return await scope.spawn(launch.argv, env=launch.env, cwd=self._context.workdir, stdin=stdin, log=self._log)
        finally:
            if stdin is not None:
                os.close(stdin)

    async def _wait_for_end(self, process: ManagedProcess) -> Exit:
        """Return when the process exits or the instance is closing; the caller closes the scope."""
        waiting: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(process.wait()),
            asyncio.ensure_future(self._closing.wait()),
        ]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for future in waiting:
            future.cancel()
        return process.exit or Exit()

    async def _probe_loop(self, probe: Probe) -> None:
        await self._wait_until_ready(probe)
        while (server := self._member_server) is not None:
            await asyncio.sleep(max(LOAD_POLL_S, self._context.node[1] / LOADS_PER_SECOND_MAX))
            load = await self._get_record(server, server.load_path)
            if load is not None:
                self._send(ServiceLoad(self._service.name, load, self._cycle))

    async def _wait_until_ready(self, probe: Probe) -> None:
        begun, interval, reported = running_now(), MIN_PROBE_INTERVAL_S, ""
        while (why := await probe()) is not None:
            if why != reported and running_now() - begun >= REPORT_REASON_AFTER_S:
                reported = why
                self._report(ServiceState.STARTING, why)
            await asyncio.sleep(interval)
            interval = min(interval * 1.5, MAX_PROBE_INTERVAL_S)
        self._mark_ready()

    def _mark_ready(self) -> None:
        self._was_ready = self._ready_now = True
        self._report(ServiceState.READY)

    def _on_probe_done(self, probing: asyncio.Future[None]) -> None:
        """Report an exception of the probe as the reason why the service is not ready."""
        if not probing.cancelled() and probing.exception() is not None:
            self._report(ServiceState.STARTING, f"its probe failed: {probing.exception()!r}")

    async def _run_probe_command(self, scope: Scope, argv: Sequence[str], env: Mapping[str, str]) -> int:
        """Run a probe's command, for at most PROBE_TIMEOUT_S, and return its exit code."""
        try:
            process = await scope.spawn(argv, env=env, cwd=self._context.workdir)
        except SpawnError:
            return NOT_STARTED
        try:
            exit = await asyncio.wait_for(process.wait(), PROBE_TIMEOUT_S)
        except asyncio.TimeoutError:
            process.signal(9)
            exit = await process.wait()
        return exit.shell_code

    # -- files and reports --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        make_private_child(self._directory)
        make_private_dirs(os.path.dirname(self._log.path))
        self._write_members()

    def _write_members(self) -> None:
        if self.members is not None and self._service.has_members and os.path.isdir(self._directory):
            sandbox.write_members(self._directory, *self.members)

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # other instances of this run may still use it
            os.rmdir(os.path.dirname(self._directory))

    def _report(self, state: ServiceState, detail: str = "") -> None:
        url, peer_url = endpoints(self._service, self._context.address, self.ports)
        name = self._service.name
        if detail:
            logger.info("service %s: %s: %s", name, state.value, detail)
        self._send(ServiceStatus(name, state, detail, url, peer_url, self._restarts, self._cycle))

    def _on_task_done(self, work: asyncio.Future[None]) -> None:
        """Report a defect at once, instead of waiting for the deadline."""
        if not work.cancelled() and work.exception() is not None:
            self._report(ServiceState.FAILED, f"could not be supervised: {work.exception()!r}")


async def _off_loop(work: Callable[..., Any], *args: Any) -> Any:
    """Run file operations on a thread: the filesystem may block for longer than the heartbeat timeout."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)
