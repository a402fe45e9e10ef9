"""One node's part in a gang: its processes in one scope, each with a separate log and beat file.

    state      leaves on                                                  to
    starting   every process has been started                             running
    running    every process has ended                                    ended
    (either)   a process cannot be started, or the leader ends them       ending
    ending     no process is left                                         ended: ProcessesEnded is the last message

The first failure and every hang are reported immediately; the leader decides whether the other processes are ended. A
process that ends with exit code 0 after it was reported as hung was only slow: this is reported, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from muster.agent.control.codec import Message
from muster.agent.control.messages import (
    GangBeat,
    HungRankEnded,
    ProcessesEnded,
    RankFailed,
    StartProcesses,
    UnendedProcess,
)
from muster.agent.environment import control_directory, node_environment
from muster.agent.event_loop import running_now
from muster.agent.gang.gang_environment import rank_environment
from muster.agent.gang.hang_detector import HangDetector, SilentRank, beat_file
from muster.agent.health.progress import read_beat
from muster.agent.job import Identity, Job
from muster.agent.private_dir import avoid_occupied, make_private_child
from muster.agent.ray.cluster import RayCluster
from muster.agent.ray.settings import temp_dir
from muster.agent.run_directory import RunDirectoryError, retried
from muster.exit_codes import INFRASTRUCTURE_FAILED, NOT_STARTED
from muster.lifecycle.config import FAILURE_GRACE_S
from muster.process import Exit, LeftoverProcess, Log, ManagedProcess, Scope, ScopeWatcher, SpawnError, sweep
from muster.process.scope import LEFTOVER_GRACE_S
from muster.process.supervisor import close_all
from muster.rundir import make_private_dirs

logger = logging.getLogger(__name__)

HANG_POLL_S = 0.5  # interval of checks for output and beats
BEAT_REPORT_INTERVAL_S = 5.0  # how often new beats are reported to the leader
HUNG_EXIT_CODE = 1  # reported for a hung process


class GangNode(ScopeWatcher):
    """Starts the processes immediately and reports to the leader until all have ended."""

    def __init__(self, identity: Identity, request: StartProcesses, send: Callable[[Message], None]) -> None:
        """`send` sends a message to the leader."""
        self._identity, self._request, self._part, self._send = identity, request, request.part, send
        cycle = self._part.cycle
        usual = temp_dir(identity.run.run_id, identity.attempt.number, cycle, identity.node_index)
        self._directory = f"{avoid_occupied(usual)}.procs"
        self._logs = {n: identity.attempt.rank_output(self._part.rank(n), cycle) for n in range(self._part.procs)}
        directories = [self._directory, control_directory(identity, cycle)]
        self._scope = Scope("procs", directories=directories, watcher=self)
        self._opening = asyncio.ensure_future(self._scope.open())
        self._processes: dict[int, ManagedProcess] = {}  # by local rank
        self._signals: list[int] = []  # sent also to processes that start later
        self._close_tasks: list[asyncio.Future[None]] = []  # not empty once the gang is being ended
        self._failed = False
        self._hung: set[int] = set()  # local ranks that were reported as hung
        self._reported_beats: list[object] = []
        self._task = asyncio.ensure_future(self._run())

    def signal(self, signum: int) -> None:
        """Send the signal to all processes, including those that start later."""
        self._signals.append(signum)
        for process in self._processes.values():
            process.signal(signum)

    def end(self, grace: float) -> None:
        """Send TERM now and KILL after `grace` seconds."""
        self._close_tasks.append(asyncio.ensure_future(self._close_scope(grace)))

    async def close(self) -> None:
        """End the processes; return when none is left."""
        self.end(FAILURE_GRACE_S)
        await asyncio.wait([self._task])
        if self._scope.lost:
            sweep()  # the processes are this agent's children now

    async def _run(self) -> None:
        try:
            await self._off_loop(make_private_child, self._directory)
            job = await retried(self._identity.run.job, self._prepare)
            base = await retried(self._identity.run.env, self._environment, job)
            await self._opening
            for local in range(self._part.procs):
                await self._start(local, job, base)
            await self._wait_for_all(job.stall_timeout)
        except (OSError, SpawnError, RunDirectoryError) as error:
            if not self._close_tasks:
                self._fail(0, INFRASTRUCTURE_FAILED, f"could not be started: {error}")
        except Exception as error:  # a defect of the agent must not look like a success
            self._fail(0, INFRASTRUCTURE_FAILED, f"could not be run: {error!r}")
        finally:
            await self._close_scope(LEFTOVER_GRACE_S)
            await self._report_beats()
            await self._off_loop(self._remove_directory)
            self._send(ProcessesEnded(self._part.cycle))

    def _prepare(self) -> Job:
        for log in self._logs.values():
            make_private_dirs(os.path.dirname(log))
        return Job.load(self._identity.run)

    def _environment(self, job: Job) -> dict[str, str]:
        """Return the environment that all processes of this node share."""
        identity, request = self._identity, self._request
        restart = {"MUSTER_RESTART_REASON": request.reason} if request.reason is not None else {}
        base = node_environment(identity, self._part.cycle)
        cluster = RayCluster(identity, job)
        cluster.address = request.ray
        return {**cluster.environment(base, processes=self._part.procs), **request.services, **restart}

    async def _start(self, local: int, job: Job, base: dict[str, str]) -> None:
        own = {**base, "MUSTER_BEAT_FILE": beat_file(self._directory, local)}
        env = rank_environment(own, self._part, local, self._identity.run.run_id, job.max_restarts)
        output = Log(self._logs[local], job.log_limit)
        log = await retried(output.path, output.open)
        try:
            process = await self._scope.spawn(job.command, env=env, cwd=job.workdir, log=output, opened_log=log)
        except SpawnError as error:
            if self._scope.lost:  # the process may run; it is then a child of this agent, and `close` ends it
                self._fail(local, Exit().shell_code, str(Exit()))
            elif not self._close_tasks:
                line = f"muster: the command could not be started: {error}\n".encode()
                await self._off_loop(os.write, log, line)
                self._fail(local, NOT_STARTED, f"could not be started: {error}")
            raise
        finally:
            await self._off_loop(close_all, [log])
        self._processes[local] = process
        for signum in self._signals:
            process.signal(signum)

    async def _wait_for_all(self, stall_timeout: float | None) -> None:
        watching = [asyncio.ensure_future(self._report_beats_periodically())]
        if stall_timeout is not None:
            watching.append(asyncio.ensure_future(self._detect_hangs(stall_timeout)))
        try:
            await asyncio.gather(
                *(self._wait_for_process(local, process) for local, process in self._processes.items())
            )
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _wait_for_process(self, local: int, process: ManagedProcess) -> None:
        exit = await process.wait()
        if exit.shell_code != 0:
            self._fail(local, exit.shell_code, str(exit))
        elif local in self._hung and not self._close_tasks:
            self._send(HungRankEnded(self._part.rank(local), self._part.cycle))

    async def _report_beats_periodically(self) -> None:
        while True:
            await asyncio.sleep(BEAT_REPORT_INTERVAL_S)
            await self._report_beats()

    async def _report_beats(self) -> None:
        """Report new beats; the leader decides what counts as progress."""
        files = [beat_file(self._directory, local) for local in range(self._part.procs)]
        beats = await self._off_loop(lambda: [read_beat(file) for file in files])
        marks = [mark for mark, _ in beats]
        if marks != self._reported_beats and any(marks):
            self._reported_beats = marks
            step = max((step for _, step in beats if step is not None), default=None)
            self._send(GangBeat(step, self._part.cycle))

    async def _detect_hangs(self, timeout: float) -> None:
        """Report each hung process once; processes that are being ended are not watched."""
        detector = HangDetector(timeout, self._logs, self._directory)
        while not self._close_tasks and not self._failed:
            await asyncio.sleep(HANG_POLL_S)
            watched = self._processes.keys() - self._hung
            running = [local for local in watched if self._processes[local].exit is None]
            hung: SilentRank | None = await self._off_loop(detector.poll, running, running_now())
            if hung is not None and self._processes[hung.local].exit is None and not self._close_tasks:
                how = f"hung: no output and no muster.beat() for {timeout:g} s"
                self._hung.add(hung.local)
                self._report_failure(hung.local, HUNG_EXIT_CODE, how, hung.seconds)

    def _fail(self, local: int, code: int, how: str) -> None:
        """Report the first failure."""
        if not self._failed:
            self._failed = True
            self._report_failure(local, code, how, None)

    def _report_failure(self, local: int, code: int, how: str, silent: float | None) -> None:
        """Send the failure; `silent` is given for a hang: the seconds since the last output or beat."""
        rank = self._part.rank(local)
        logger.error("rank %s %s", rank, how)
        self._send(RankFailed(rank, code, how, silent, self._part.cycle))

    async def _close_scope(self, grace: float) -> None:
        with contextlib.suppress(SpawnError):  # the supervisor was lost while it started
            await self._opening
            await self._scope.close(grace)

    def processes_left(self, left: Sequence[LeftoverProcess]) -> None:
        for one in left:
            logger.warning("%s", one)
            self._send(UnendedProcess(str(one)))

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # another virtual node of this machine may still use it
            os.rmdir(os.path.dirname(self._directory))

    async def _off_loop(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run file operations on a thread: the filesystem may block for longer than the heartbeat timeout."""
        return await asyncio.get_running_loop().run_in_executor(None, work, *args)
