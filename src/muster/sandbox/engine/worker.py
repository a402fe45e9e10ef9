"""The server's side of one worker: its control socket, the execution that waits in it or runs.

starting -> warm <-> running; from any of them: gone (`why` says how)
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
from muster.sandbox.jail import worker as orders
from muster.sandbox.models import ProgramResult, ProgramStep, ResourceUsage
from muster.sandbox.settings import KILL_S

START_S = 10.0
LOOK_S = 0.25  # how often a tree is looked at, where nobody else counts what it takes
ENDED = "it has ended"  # by itself, or by somebody's hand
NOT_NEEDED, NOT_WANTED = "it is not needed", "nobody waits for its result any more"
READS_FAR = 8  # reports taken at once
GONE_S = 5.0  # for a killed worker and all in it to be gone; what takes longer hangs in the kernel


class Unclean(Exception):
    """The worker could not be made ready for the job: nothing of it was run, another one may."""


class Worker:
    """A place to run in. `number` is its own among all that live."""

    def __init__(
        self, number: int, place: str, workspace: str | None, cgroup: WorkerCgroup | None, is_on_disk: bool
    ) -> None:
        self.number, self.place, self.workspace, self.cgroup = number, place, workspace, cgroup
        self.state, self.why = "starting", ""
        self.pid, self.proc = 0, False
        self.executions, self.busy_s, self.idle_since = 0, 0.0, time.monotonic()
        self.of_session = False
        self.watches = cgroup is None or is_on_disk
        self._looking: asyncio.TimerHandle | None = None
        self.memory = 0  # of a long-lived tree, when it told
        self.on_gone: Callable[[Worker], None] = lambda worker: None
        self.waiting: Execution | None = None
        self._pidfd: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[dict[str, Any]] | None = None
        self._last_resort: asyncio.TimerHandle | None = None

    # -- its life ---------------------------------------------------------------------------------------------------

    async def start(self, zygote: Zygote, plan: dict[str, Any]) -> None:
        """Have it forked; returns when its walls stand and an execution waits behind them."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._on_report)
        with theirs:
            zygote.fork_worker(plan, theirs.fileno())
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), START_S)
        except asyncio.TimeoutError:
            self.destroy(f"it was not ready after {START_S:g} s")
            raise SandboxError(f"a worker could not be made: {self.why}") from None
        except BaseException:
            self.destroy("its start was given up")
            raise
        self._spawn(fresh=True)
        if self.state == "gone":
            raise SandboxError(f"a worker could not be made: {self.why}")
        self.state = "warm"

    def destroy(self, why: str, reason: str = "lost") -> None:
        """End it at once, with everything in it; `reason` is that of a program that runs in it."""
        if self.state == "gone":
            return
        self.state, self.why = "gone", why
        self._signal(signal.SIGKILL)
        self._loop.remove_reader(self._control)
        self._control.close()
        if self.waiting is not None:
            self.waiting.close()
            self.waiting = None
        if not self._ready.done():
            self._ready.set_exception(SandboxError(f"a worker could not be made: {why}"))
            self._ready.exception()  # seen: nobody may be waiting any more
        if self._ended is not None and not self._ended.done():
            self._ended.set_result({"status": signal.SIGKILL, "reason": reason, "clean": False})
        if self._last_resort is not None:
            self._last_resort.cancel()
        self.unwatch()
        self.on_gone(self)

    def wait_until_gone(self) -> bool:
        """After `destroy`, in a thread: wait until its process is gone; False if it is not in time.

        With a pid namespace this is the end of all that ran in it: its first process is the last to go.
        """
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            gone = bool(poll.poll(1000 * GONE_S))
            os.close(pidfd)
            return gone
        end = time.monotonic() + GONE_S
        while self.pid and read_process(self.pid) is not None:  # before Linux 5.3
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        return True

    def _signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._pidfd is not None and hasattr(signal, "pidfd_send_signal"):  # not in a Python built before it
                signal.pidfd_send_signal(self._pidfd, signum)
            elif self.pid:
                os.kill(self.pid, signum)

    # -- running ----------------------------------------------------------------------------------------------------

    async def run(self, step: ProgramStep, limit: int) -> ProgramResult:
        """Hand the step to the execution that waits, and wait for its end."""
        execution, self._ended = self.begin(), self._loop.create_future()
        started = time.monotonic()
        execution.begin(limit)
        execution.hand(step.job, step.stdin)
        timer = self._loop.call_later(step.timeout, self.kill, "timeout")
        self.watch()
        try:
            report = await self._ended
            wall = time.monotonic() - started
            if report["reason"] in (None, "lost") and execution.was_not_received:
                self.destroy("its execution ended before it took its job")
                raise Unclean(self.why)
            if report["reason"] == "unclean":
                raise Unclean(self.why)
            stdout, stderr = execution.stdout.finish(), execution.stderr.finish()
        except asyncio.CancelledError:
            self.destroy(NOT_WANTED)
            raise
        finally:
            timer.cancel()
            self.unwatch()
            execution.close()
            self.busy_s += time.monotonic() - started
        self.finished(report)
        return ended_of(report, stdout, stderr, wall, self.cgroup)

    def begin(self) -> Execution:
        """The execution that waits is the caller's now."""
        assert self.state == "warm" and self.waiting is not None
        execution, self.waiting, self.state = self.waiting, None, "running"
        self.executions += 1
        return execution

    def finished(self, report: dict[str, Any]) -> None:
        """The tree is gone: make ready for the next one, in a scratch that still is as it was left."""
        if self._last_resort is not None:
            self._last_resort.cancel()
            self._last_resort = None
        if self.state == "running" and report["clean"]:
            self.state, self.idle_since = "idle", time.monotonic()
        elif self.state != "gone":
            self.destroy("not everything in it could be ended")

    def prepare(self, fresh: bool) -> None:
        """Have the next execution forked; `fresh`: in an empty scratch."""
        if self.state == "idle":
            self._spawn(fresh)
            if self.state == "idle":
                self.state = "warm"

    def _spawn(self, fresh: bool) -> None:
        self.waiting = Execution()
        try:
            wire.send_bytes(self._control, orders.SPAWN if fresh else orders.SPAWN_AGAIN, self.waiting.descriptors)
        except OSError as error:
            self.waiting.give_away()
            self.destroy(f"it cannot be reached: {error}")
            return
        self.waiting.give_away()

    def kill(self, reason: str) -> None:
        """End the tree that runs; the whole worker, if that takes too long."""
        if self._tell(orders.KILL + reason.encode()) and self._last_resort is None:
            self._last_resort = self._loop.call_later(KILL_S, self.destroy, "its processes did not end")

    def watch(self) -> None:
        """While something runs whose memory, or files, the kernel does not count, have the worker look at it."""
        if self.watches:
            self._looking = self._loop.call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self.look()
        self.watch()

    def unwatch(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def look(self) -> None:
        if self.state != "gone":
            with contextlib.suppress(OSError):  # it has more than enough to do, or is gone, which is noticed elsewhere
                self._control.send(orders.LOOK)

    def interrupt(self) -> None:
        self._tell(orders.INTERRUPT)

    def _tell(self, order: bytes) -> bool:
        if self.state == "gone":
            return False
        try:
            self._control.send(order)
        except OSError as error:
            self.destroy(f"it cannot be reached: {error}")
            return False
        return True

    # -- what it reports --------------------------------------------------------------------------------------------

    def _on_report(self) -> None:
        for _ in range(READS_FAR):
            if self.state == "gone":
                return
            try:
                data, fds = wire.receive_bytes(self._control)
            except BlockingIOError:
                return
            if not data:
                self.destroy(ENDED)
            elif data.startswith(b"ended "):
                self._on_end(report_of(data))
            else:
                self._take(wire.decoded(data), fds)

    def _on_end(self, report: dict[str, Any]) -> None:
        if self.state == "warm":  # the execution that waited did: the kernel wanted its memory, or somebody killed it
            self.destroy("what waited in it has ended")
        elif self._ended is not None and not self._ended.done():
            self._ended.set_result(report)

    def _take(self, message: dict[str, Any], fds: list[int]) -> None:
        event = message["event"]
        if event == "born":
            self.pid, self._pidfd = message["pid"], (fds[0] if fds else None)
        elif event == "ready":
            self.proc = message["proc"]
            if not self._ready.done():
                self._ready.set_result(None)
        elif event == "memory":
            self.memory = message["bytes"]
        elif event == "failed":
            self.destroy(message["why"], "unclean")

    def expect_end(self) -> asyncio.Future[dict[str, Any]]:
        """Of a session's tree: its end, whenever that is."""
        self._ended = self._loop.create_future()
        return self._ended


def report_of(data: bytes) -> dict[str, Any]:
    """The words of inside/worker.py's REPORT."""
    _, status, cpu_s, max_rss_kb, killed, clean, reason = data.decode().split(" ")
    return {
        "status": int(status),
        "cpu_s": float(cpu_s),
        "max_rss_kb": int(max_rss_kb),
        "killed": int(killed),
        "clean": clean == "1",
        "reason": None if reason == "-" else reason,
    }


def ended_of(
    report: dict[str, Any], stdout: Any, stderr: Any, wall: float, cgroup: WorkerCgroup | None
) -> ProgramResult:
    """The worker's report, and what the cgroup counted, as the end of a step."""
    status, reason = report["status"], report["reason"]
    signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    wanted_memory = cgroup is not None and cgroup.had_to_kill()  # asked every time: it is counted from the last time on
    if wanted_memory and status != 0 and reason is None:
        reason = "memory"
    usage = ResourceUsage(wall, report.get("cpu_s", 0.0), report.get("max_rss_kb", 0))
    return ProgramResult(None if signum is not None else os.WEXITSTATUS(status), signum, reason, stdout, stderr, usage)
