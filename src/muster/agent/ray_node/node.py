"""One Ray node in the agent's hands: warm, start, watch its daemons, end it, keep its logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tarfile
from typing import Any, Callable

from muster.agent.ray_node import settings, starter
from muster.agent.ray_node.settings import RayOptions
from muster.process import Exit, Scope, source_of, sweep
from muster.process.keeper import descendants

STOP_GRACE_S = 1.0  # Ray's daemons have nothing to save at the end of a run; their logs are written as they go
DAEMONS = ("raylet", "gcs_server")  # the node lives and dies with these, by their names in /proc/<pid>/comm


class RayFailure(Exception):
    """This node's part of Ray could not be started, or died."""


class RayNode:
    """Owns everything of Ray on this node, in a scope of its own."""

    def __init__(self, options: RayOptions, rank: int, host: str, temp: str, env: dict[str, str], token: bytes) -> None:
        self._options, self._rank, self._host, self._temp, self._token = options, rank, host, temp, token
        self._token_file = os.path.join(temp, "token")
        self._env = settings.environment(env, self._token_file)
        self._scope = Scope("ray")
        self._scope.on_orphan_exit = self._orphan_exited
        self._scope.on_lost = lambda: self._fail("the keeper of Ray's processes was killed")
        self._daemons: dict[int, str] = {}
        self._commands = -1
        self.on_alive: Callable[[list[int]], None] = lambda ranks: None
        self.failed: asyncio.Future[RayFailure] = asyncio.get_running_loop().create_future()
        self.version: str | None = None

    async def warm(self) -> None:
        """Begin importing Ray; returns as soon as the starter runs, not when it is done."""
        os.makedirs(os.path.dirname(self._temp), mode=0o700, exist_ok=True)
        os.mkdir(self._temp, mode=0o700)
        # A copy on the node's own disk: Ray's processes read it again and again, the run's is on a shared filesystem.
        with open(os.open(self._token_file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(self._token)
        await self._scope.open()
        commands, self._commands = os.pipe()
        reports, reports_write = os.pipe()
        try:
            self._starter = await self._scope.spawn(
                [sys.executable, "-u", "-c", source_of(starter)],
                env=self._env, stdin=commands, stdout=reports_write, stderr=2,
            )  # fmt: skip
        finally:
            os.close(commands)
            os.close(reports_write)
        self._reports = asyncio.create_task(self._read_reports(reports))

    async def start_head(self, address: str) -> str:
        """Start the head on this address; returns the cluster's address at once, `on_alive` tells when it is up."""
        port = settings.probe_free_port(address)
        self._start(address, settings.head_arguments(self._options, port), [address, port])
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    async def start_worker(self, address: str, head: str) -> None:
        """Join the cluster at `head` from this address."""
        self._start(address, [f"--address={head}"], None)

    def _start(self, address: str, extra: list[str], gcs: list[Any] | None) -> None:
        cpus = self._options.cpus or settings.visible_cpus(self._env)
        args = settings.start_arguments(self._options, self._rank, self._host, address, self._temp, cpus)
        order = {"start": extra + args, "gcs": gcs, "nodes": self._options.nodes}
        os.write(self._commands, json.dumps(order).encode() + b"\n")

    async def _read_reports(self, fd: int) -> None:
        """Take the starter's reports until it ends; an end before `ray start` succeeded is a failure."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb"))
        started = False
        while line := await reader.readline():
            report = json.loads(line)
            if report["event"] == "warm":
                self.version = report["ray"]
            elif report["event"] == "no_ray":
                error = report["error"]
                self._fail(f"Ray cannot be imported by {sys.executable}: {error} (--python chooses another)")
            elif report["event"] == "alive":
                self.on_alive(report["ranks"])
            elif report["code"] == 0:
                started = True
                self._find_daemons()
            else:
                self._fail(f"`ray start` exited with {report['code']}")
        transport.close()
        if not started:
            self._fail(f"the process that starts Ray {await self._starter.wait()}")

    def _find_daemons(self) -> None:
        """Remember the daemons' pids, so that the end of one is known the moment it happens."""
        for pid in descendants(self._scope.keeper_pid):
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                    name = file.read().strip()
            except OSError:
                continue
            if name in DAEMONS:
                self._daemons[pid] = name
        if "raylet" not in self._daemons.values():
            self._fail("the raylet was gone right after `ray start`")

    def _orphan_exited(self, pid: int, exit: Exit) -> None:
        if pid in self._daemons:
            self._fail(f"Ray's {self._daemons[pid]} {exit}")

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(RayFailure(reason))

    async def stop(self, archive: str) -> None:
        """End every process of Ray here, keep its logs as one archive, remove its directory."""
        self._fail("stopped")  # from here on an ending daemon is no news
        if self._commands != -1:
            os.close(self._commands)
            self._commands = -1
            await self._scope.close(STOP_GRACE_S)
            if self._scope.lost:
                sweep()  # they are this agent's own children now
            await asyncio.gather(self._reports, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._collect, archive)

    def _collect(self, archive: str) -> None:
        logs = os.path.join(self._temp, "session_latest", "logs")
        try:
            if os.path.isdir(logs):
                os.makedirs(os.path.dirname(archive), exist_ok=True)
                with tarfile.open(archive + ".tmp", "w:gz", compresslevel=1) as tar:
                    tar.add(os.path.realpath(logs), arcname=os.path.basename(archive).rpartition(".tar")[0])
                os.rename(archive + ".tmp", archive)
        except OSError as error:
            print(f"muster: Ray's logs could not be collected: {error}", file=sys.stderr, flush=True)
        shutil.rmtree(self._temp, ignore_errors=True)
        with contextlib.suppress(OSError):  # another virtual node of this machine still uses it
            os.rmdir(os.path.dirname(self._temp))
