"""The engine's side of one worker: its control socket and the execution that waits or runs in it.

starting -> warm -> running -> idle -> warm; from any of them: gone (`why` gives the reason)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import time
from typing import Any, Callable

from muster.process.proctree import POLL_S, read_process
from muster.sandbox.engine.cgroups import WorkerCgroup
from muster.sandbox.engine.execution import Execution
from muster.sandbox.engine.zygote import SandboxError, Zygote
from muster.sandbox.jail import wire
from muster.sandbox.jail import worker as commands
from muster.sandbox.models import ProgramResult, ProgramStep, ResourceUsage
from muster.sandbox.settings import KILL_S

START_TIMEOUT_S = 10.0
USAGE_CHECK_INTERVAL_S = 0.25  # where the kernel does not count what a process tree uses
ENDED = "it has exited"
NOT_NEEDED, NOT_WANTED = "it is not needed", "its result is not wanted any more"
MAX_REPORTS_AT_ONCE = 8
EXIT_TIMEOUT_S = 5.0  # for a killed worker and everything in it; a process that takes longer hangs in the kernel


class Unclean(Exception):
    """The worker could not run the job. Nothing of the job ran, so another worker may run it."""


class Worker:
    """A worker process. Its `number` is unique among live workers."""

    def __init__(
        self, number: int, directory: str, workspace: str | None, cgroup: WorkerCgroup | None, is_on_disk: bool
    ) -> None:
        self.number, self.directory, self.workspace, self.cgroup = number, directory, workspace, cgroup
        self.state, self.why = "starting", ""
        self.pid, self.proc = 0, False
        self.executions, self.busy_s, self.idle_since = 0, 0.0, time.monotonic()
        self.in_session = False
        self.is_contained = False  # whether the kernel of a sandbox, which has no other worker, runs it
        self.needs_usage_checks = cgroup is None or is_on_disk
        self._usage_check: asyncio.TimerHandle | None = None
        self.memory, self.cpu_s = 0, 0.0  # bytes and CPU seconds of the running tree, as last reported
        self.on_gone: Callable[[Worker], None] = lambda worker: None
        self.waiting: Execution | None = None
        self._control: socket.socket  # there from `start` on
        self._pidfd: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[dict[str, Any]] | None = None
        self._last_resort: asyncio.TimerHandle | None = None

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def contain(self, pid: int) -> None:
        """Set the process with which everything in the worker ends: that of its sandbox, which has just started."""
        self.is_contained, self.pid = True, pid
        with contextlib.suppress(AttributeError, OSError):  # before Linux 5.3, or Python was built there
            self._pidfd = os.pidfd_open(pid)
        if self.state == "gone":  # it was destroyed meanwhile
            self._signal(signal.SIGKILL)

    async def start(self, zygote: Zygote, plan: dict[str, Any]) -> None:
        """Have the zygote fork the worker; returns when it is confined and an execution waits in it."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._on_report)
        with theirs:
            zygote.fork_worker(plan, theirs.fileno())
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), START_TIMEOUT_S)
        except asyncio.TimeoutError:
            self.destroy(f"it was not ready after {START_TIMEOUT_S:g} s")
            raise SandboxError(f"a worker could not be started: {self.why}") from None
        except BaseException:
            self.destroy("its start was abandoned")
            raise
        self._spawn(fresh=True)
        if self.state == "gone":
            raise SandboxError(f"a worker could not be started: {self.why}")
        self.state = "warm"

    def destroy(self, why: str, reason: str = "lost") -> None:
        """Kill the worker with everything in it; `reason` is reported for the program that runs in it."""
        if self.state == "gone":
            return
        self.state, self.why = "gone", why
        self._signal(signal.SIGKILL)
        if hasattr(self, "_control"):
            self._loop.remove_reader(self._control)
            self._control.close()
        if self.waiting is not None:
            self.waiting.close()
            self.waiting = None
        if not self._ready.done():
            self._ready.set_exception(SandboxError(f"a worker could not be started: {why}"))
            self._ready.exception()  # mark it as retrieved: there may be no waiter any more
        if self._ended is not None and not self._ended.done():
            self._ended.set_result({"status": signal.SIGKILL, "reason": reason, "clean": False})
        if self._last_resort is not None:
            self._last_resort.cancel()
        self.stop_usage_checks()
        self.on_gone(self)

    def wait_until_gone(self) -> bool:
        """Wait, in a thread after `destroy`, until the process has exited; return False if it does not in time.

        With a pid namespace everything in it has exited then: its first process is the last to exit.
        """
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            gone = bool(poll.poll(1000 * EXIT_TIMEOUT_S))
            os.close(pidfd)
            return gone
        end = time.monotonic() + EXIT_TIMEOUT_S
        while self.pid and read_process(self.pid) is not None:  # before Linux 5.3
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        return True

    def _signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._pidfd is not None and hasattr(signal, "pidfd_send_signal"):  # an old build of Python lacks it
                signal.pidfd_send_signal(self._pidfd, signum)
            elif self.pid:
                os.kill(self.pid, signum)

    # -- running ----------------------------------------------------------------------------------------------------

    async def run(self, step: ProgramStep, limit: int) -> ProgramResult:
        """Send the step to the waiting execution and wait for its end; raises Unclean if the step was not started."""
        execution, self._ended = self.begin(), self._loop.create_future()
        started = time.monotonic()
        execution.begin(limit)
        execution.send(step.job, step.stdin)
        timer = self._loop.call_later(step.timeout, self.kill, "timeout")
        self.start_usage_checks()
        try:
            report = await self._ended
            wall = time.monotonic() - started
            if report["reason"] in (None, "lost") and execution.was_not_received:
                self.destroy("its execution ended before it received its job")
                raise Unclean(self.why)
            if report["reason"] == "unclean":
                raise Unclean(self.why)
            if report["reason"] is None and report["ended"] >= started + step.timeout:
                report["reason"] = "timeout"  # it ended by itself before this busy process could end it
            stdout, stderr = execution.stdout.finish(), execution.stderr.finish()
        except asyncio.CancelledError:
            self.destroy(NOT_WANTED)
            raise
        finally:
            timer.cancel()
            self.stop_usage_checks()
            execution.close()
            self.busy_s += time.monotonic() - started
        self.finished(report)
        return result_of(report, stdout, stderr, wall, self.cgroup)

    def begin(self) -> Execution:
        """Hand the waiting execution over to the caller."""
        assert self.state == "warm" and self.waiting is not None
        execution, self.waiting, self.state = self.waiting, None, "running"
        self.executions += 1
        self.memory, self.cpu_s = 0, 0.0
        return execution

    def finished(self, report: dict[str, Any]) -> None:
        """Record that the process tree is gone; the scratch is still as the tree left it."""
        if self._last_resort is not None:
            self._last_resort.cancel()
            self._last_resort = None
        if self.state == "running" and report["clean"]:
            self.state, self.idle_since = "idle", time.monotonic()
        elif self.state != "gone":
            self.destroy("not all its processes could be killed")

    def prepare(self, fresh: bool) -> None:
        """Have the worker fork the next execution; with `fresh` in an empty scratch."""
        if self.state == "idle":
            self._spawn(fresh)
            if self.state == "idle":
                self.state = "warm"

    def _spawn(self, fresh: bool) -> None:
        try:
            self.waiting = Execution()
        except OSError as error:  # no more open files: the descriptors of this worker become free
            self.destroy(f"an execution cannot be prepared: {error}")
            return
        self.waiting.on_unsent(lambda: self.destroy("it could not receive a job"))
        try:
            wire.send_bytes(self._control, commands.SPAWN if fresh else commands.SPAWN_AGAIN, self.waiting.descriptors)
        except OSError as error:
            self.waiting.close_child_ends()
            self.destroy(f"it cannot be reached: {error}")
            return
        self.waiting.close_child_ends()

    def kill(self, reason: str) -> None:
        """Kill the running process tree; if that takes too long, the whole worker. The program ends for this reason.

        On a busy machine the worker itself may need longer: that does not change why the program was ended.
        """
        if self._send(commands.KILL + reason.encode()) and self._last_resort is None:
            self._last_resort = self._loop.call_later(KILL_S, self.destroy, "its processes did not exit", reason)

    def start_usage_checks(self) -> None:
        """Have the worker check memory, processes and files of its tree regularly, where the kernel does not count."""
        if self.needs_usage_checks:
            self._usage_check = self._loop.call_later(USAGE_CHECK_INTERVAL_S, self._on_usage_check)

    def _on_usage_check(self) -> None:
        self.check_usage()
        self.start_usage_checks()

    def stop_usage_checks(self) -> None:
        if self._usage_check is not None:
            self._usage_check.cancel()

    def check_usage(self) -> None:
        if self.state != "gone":
            with contextlib.suppress(OSError):  # the socket is full, or the worker is gone, which is detected elsewhere
                self._control.send(commands.CHECK_USAGE)

    def interrupt(self) -> None:
        self._send(commands.INTERRUPT)

    def _send(self, command: bytes) -> bool:
        if self.state == "gone":
            return False
        if not hasattr(self, "_control"):
            self.destroy("its start was abandoned")
            return False
        try:
            self._control.send(command)
        except OSError as error:
            self.destroy(f"it cannot be reached: {error}")
            return False
        return True

    # -- reports ----------------------------------------------------------------------------------------------------

    def _on_report(self) -> None:
        for _ in range(MAX_REPORTS_AT_ONCE):
            if self.state == "gone":
                return
            try:
                data, fds = wire.receive_bytes(self._control)
            except BlockingIOError:
                return
            if not data:
                self.destroy(ENDED, self._reason_of_end())
            elif data.startswith(b"ended "):
                self._on_end(parse_report(data))
            else:
                self._on_message(wire.decoded(data), fds)

    def _reason_of_end(self) -> str:
        """Return the reason for which the worker has exited: its sandbox is ended where a cgroup has no memory left."""
        out_of_memory = self.is_contained and self.cgroup is not None and self.cgroup.has_oom_killed()
        return "memory" if out_of_memory else "lost"

    def _on_end(self, report: dict[str, Any]) -> None:
        if self.state == "warm":  # the waiting execution was killed, for example by the kernel's OOM killer
            self.destroy("its waiting execution has ended")
        elif self._ended is not None and not self._ended.done():
            self._ended.set_result(report)

    def _on_message(self, message: dict[str, Any], fds: list[int]) -> None:
        event = message["event"]
        if event == "born":
            self.pid, self._pidfd = message["pid"], (fds[0] if fds else None)
        elif event == "ready":
            self.proc = message["proc"]
            if not self._ready.done():
                self._ready.set_result(None)
        elif event == "usage":
            self.memory, self.cpu_s = message["bytes"], message["cpu_s"]
        elif event == "failed":
            self.destroy(message["why"], "unclean")

    def expect_end(self) -> asyncio.Future[dict[str, Any]]:
        """Return a future for the end of a session's process tree."""
        self._ended = self._loop.create_future()
        return self._ended


def parse_report(data: bytes) -> dict[str, Any]:
    """Parse REPORT of jail/worker.py."""
    _, status, cpu_s, max_rss_kb, killed, clean, ended, reason = data.decode().split(" ")
    return {
        "status": int(status),
        "cpu_s": float(cpu_s),
        "max_rss_kb": int(max_rss_kb),
        "killed": int(killed),
        "clean": clean == "1",
        "ended": float(ended),
        "reason": None if reason == "-" else reason,
    }


def result_of(
    report: dict[str, Any], stdout: Any, stderr: Any, wall: float, cgroup: WorkerCgroup | None
) -> ProgramResult:
    """Return the result of a step from the worker's report and the cgroup's counters."""
    status, reason = report["status"], report["reason"]
    signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    oom_killed = cgroup is not None and cgroup.has_oom_killed()  # called every time: it compares with the last call
    if oom_killed and status != 0 and reason is None:
        reason = "memory"
    usage = ResourceUsage(wall, report.get("cpu_s", 0.0), report.get("max_rss_kb", 0))
    return ProgramResult(None if signum is not None else os.WEXITSTATUS(status), signum, reason, stdout, stderr, usage)
