"""The memory guard: it ends the largest program when memory runs out, before the kernel ends something else.

It acts when the node (or the container of the server) has less than `memory_reserve_mb` left, or when all programs
together use more than `memory_total_mb`. Where the server has cgroups, the kernel enforces the second limit by itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Callable

from muster.sandbox.engine.worker import Worker
from muster.sandbox.jail import usage
from muster.sandbox.node_memory import available_bytes

GUARD_INTERVAL_S = 0.2
TOTAL_INTERVAL_S = 1.0  # between two sums over all programs, which read much of /proc
LEAST_VICTIM_BYTES = 64 << 20  # ending a smaller program would not help: others use the memory
END_TIMEOUT_S = 2.0  # for the memory of an ended program to become free
REASON = "node_memory"


@dataclass(frozen=True)
class MeasuredWorker:
    """The memory of one program in bytes, and its worker."""

    bytes: int
    worker: Worker


class MemoryGuard:
    """Ends the largest program while memory is short."""

    def __init__(self, workers: Callable[[], Iterable[Worker]], total_mb: int, reserve_mb: int, files: int) -> None:
        """`workers` returns those that run programs; `files` is the limit of open files of a process."""
        self._workers, self._total, self._reserve, self._files = workers, total_mb << 20, reserve_mb << 20, files
        self.ended = 0
        self._complained = False

    async def watch(self) -> None:
        loop, summed = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(GUARD_INTERVAL_S)
            is_short = available_bytes() < self._reserve
            if is_short or loop.time() - summed > TOTAL_INTERVAL_S:
                summed = loop.time()
                running = list(self._workers())
                measured = await loop.run_in_executor(None, self._measure, running)
                await self._act(is_short, measured)

    async def _act(self, is_short: bool, measured: list[MeasuredWorker]) -> None:
        total = sum(one.bytes for one in measured)
        if not is_short and total <= self._total:
            self._complained = False
            return
        largest = max(measured, key=lambda one: one.bytes, default=None)
        if largest is None or largest.bytes < LEAST_VICTIM_BYTES:
            self._complain("memory is short, and no program in the sandbox uses much of it")
            return
        self.ended += 1
        limit = "the node" if is_short else "the sandbox"
        self._complain(f"memory of {limit} ran out: ended a program that used {largest.bytes >> 20} MB")
        largest.worker.kill(REASON)
        end = asyncio.get_running_loop().time() + END_TIMEOUT_S
        while largest.worker.state == "running" and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(GUARD_INTERVAL_S / 4)

    def _complain(self, message: str) -> None:
        if not self._complained:
            self._complained = True
            print(f"muster sandbox: {message}", file=sys.stderr, flush=True)

    def _measure(self, workers: Iterable[Worker]) -> list[MeasuredWorker]:
        return [MeasuredWorker(self._memory(worker), worker) for worker in workers if worker.pid]

    def _memory(self, worker: Worker) -> int:
        if worker.cgroup is not None:
            return worker.cgroup.memory()
        processes = usage.tree_below(worker.pid)
        has_namespace = _network_of(worker.pid) not in (None, _network_of("self"))
        sockets = (
            usage.sockets_of_namespace(worker.pid)
            if has_namespace
            else usage.sockets_of_processes(processes, self._files)
        )
        own = usage.resident(worker.pid)[0]
        return usage.memory_of_tree(processes, usage.pages_of(worker.pid), own, sockets)


def _network_of(pid: int | str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None
