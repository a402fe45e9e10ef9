"""One attempt to start this node's Ray, with a new scope, starter, temporary directory and ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from muster.agent.private_dir import make_private
from muster.agent.ray import starter
from muster.agent.ray.session_logs import ArchiveOptions, archive_logs
from muster.ports.blocks import HeldBlock
from muster.process import Exit, Scope, descendants, source_of, sweep
from muster.rundir.tokens import derive_ray_token

STOP_GRACE_S = 0.3  # Ray's daemons have nothing to save at the end of a run; they write their logs continuously
REPORT_MAX_BYTES = 4 << 20  # of a line: the node table of 100,000 nodes takes 0.7 MB; asyncio's default is 64 KiB
DAEMONS = ("raylet", "gcs_server")  # the exit of one is a failure of the node; names as in /proc/<pid>/comm


@dataclass(frozen=True)
class StartFailure:
    """Why an attempt failed; `final` if a retry would fail, too."""

    reason: str
    final: bool = False


class StartAttempt:
    """Imports, starts and watches Ray once. `stop` is idempotent."""

    def __init__(self, temp: str, token: bytes, env: dict[str, str], held: HeldBlock) -> None:
        loop = asyncio.get_running_loop()
        self.temp, self.ports = temp, held.block
        self._token, self._env, self._held = token, env, held
        self._scope = Scope("ray", directories=[temp])
        self._scope.on_orphan_exit = self._on_orphan_exit
        self._scope.on_lost = lambda: self._fail("the supervisor of Ray's processes was killed", final=True)
        self._daemons: dict[int, str] = {}
        self._commands = -1
        self._opening: asyncio.Future[Scope] | None = None
        self._stopped = False
        self._reports: asyncio.Task[None] | None = None
        self._head, self._nodes, self._complete = False, 0, True  # complete: the node table has all nodes
        self.on_version: Callable[[str], str | None] = lambda version: None  # returns why it cannot be used
        self.on_alive: Callable[[list[int]], None] = lambda node_indexes: None
        self.joined = False  # other nodes may have joined this head: a retry would start another cluster
        self.started: asyncio.Future[None] = loop.create_future()
        self.failed: asyncio.Future[StartFailure] = loop.create_future()

    @staticmethod
    def token_file(temp: str) -> str:
        """Return the path of a copy on the node's disk: Ray's processes read it often, and the original is shared."""
        return os.path.join(temp, "token")

    async def warm(self) -> None:
        """Start the process that imports Ray; return before the import is complete."""
        make_private(os.path.dirname(self.temp))
        os.mkdir(self.temp, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(self.token_file(self.temp), flags, 0o600), "wb") as file:
            file.write(derive_ray_token(self._token))
        # Shielded: `stop` must know a supervisor that was started, even if this call is cancelled.
        self._opening = asyncio.ensure_future(self._scope.open())
        await asyncio.shield(self._opening)
        commands, self._commands = os.pipe()
        reports, reports_write = os.pipe()
        try:
            self._starter = await self._scope.spawn(
                [sys.executable, "-u", "-c", source_of(starter)],
                env=self._env,
                stdin=commands,
                stdout=reports_write,
                stderr=2,
            )
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(commands)
            os.close(reports_write)
        self._reports = asyncio.create_task(self._read_reports(reports))

    def start(self, args: list[str], gcs: list[Any] | None, nodes: int) -> None:
        """Run `ray start`; with `gcs` (the head's address) the starter reports the nodes in Ray's table."""
        self._head, self._nodes, self._complete = gcs is not None, nodes, gcs is None
        command = {"start": args, "gcs": gcs, "nodes": nodes, "client_port": self.ports.client_server}
        with contextlib.suppress(BrokenPipeError):  # the starter has ended: the reader of its reports handles that
            os.write(self._commands, json.dumps(command).encode() + b"\n")

    async def _read_reports(self, fd: int) -> None:
        """Handle the starter's reports until it ends; an end before `ray start` succeeded is a failure."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=REPORT_MAX_BYTES)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb"))
        while line := await reader.readline():
            report = json.loads(line)
            if report["event"] == "warm":
                if (unfit := self.on_version(report["ray"])) is not None:
                    self._fail(unfit, final=True)
            elif report["event"] == "no_ray":
                why = f"Ray cannot be imported by {sys.executable}: {report['error']} (--python chooses another)"
                self._fail(why, final=True)
            elif report["event"] == "refused":
                self._fail(report["error"], final=True)
            elif report["event"] == "alive":
                self._complete = len(report["ranks"]) == self._nodes
                self.joined = True
                self.on_alive(report["ranks"])
            elif report["event"] == "started" and report["code"] == 0:
                self._find_daemons()
                self.started.set_result(None)
            elif report["event"] == "started":
                self._fail(f"`ray start` exited with {report['code']}")
        transport.close()
        if not self.started.done() or not self._complete:
            self._fail(f"the process that starts and watches Ray {await self._starter.wait()}")

    def _find_daemons(self) -> None:
        """Record the daemons' pids, so that the exit of one is detected immediately."""
        for pid in descendants(self._scope.supervisor_pid):
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                    name = file.read().strip()
            except OSError:
                continue
            if name in DAEMONS:
                self._daemons[pid] = name
        for name in DAEMONS if self._head else DAEMONS[:1]:
            if name not in self._daemons.values():  # final: others may use the cluster already
                self._fail(f"Ray's {name} was gone when `ray start` returned", final=True)

    def _on_orphan_exit(self, pid: int, exit: Exit) -> None:
        if pid in self._daemons:
            self._fail(f"Ray's {self._daemons[pid]} {exit}")

    def _fail(self, reason: str, final: bool = False) -> None:
        if not self.failed.done():
            self.failed.set_result(StartFailure(reason, final))

    async def stop(self, archive: ArchiveOptions | None) -> None:
        """End the processes, archive the logs if wanted, remove the directory, release the ports.

        A second call does nothing; a call after a cancelled one completes it.
        """
        self._fail("stopped")  # from here on the exit of a daemon is expected
        if self._stopped:
            return
        commands, self._commands = self._commands, -1  # the descriptor may be reused as soon as it is closed
        if commands != -1:
            os.close(commands)
        await self._end_processes()
        loop = asyncio.get_running_loop()
        if archive is not None:
            await asyncio.sleep(archive.after)
            logs = os.path.join(self.temp, "session_latest", "logs")
            await loop.run_in_executor(None, archive_logs, os.path.realpath(logs), archive)
        await loop.run_in_executor(None, lambda: shutil.rmtree(self.temp, ignore_errors=True))
        self._held.release()
        self._stopped = True

    async def _end_processes(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
            if not self._opening.cancelled() and self._opening.exception() is None:
                await self._scope.close(STOP_GRACE_S)
                if self._scope.lost:
                    sweep()  # the processes are this agent's children now
        if self._reports is not None:
            await asyncio.wait([self._reports])
