"""A leader's real listener and protocol in a process of its own, and many agents of one process that only speak.

Everything that knows how `agent/control/connections.py` is used stands in `_Lead`.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from muster.agent.control.channel import Channel, ChannelError, connect
from muster.agent.control.connections import Connections
from muster.agent.health.limits import raise_limits
from muster.agent.job import Identity
from muster.lifecycle.events import Arrived
from muster.lifecycle.state_machine import RunConfig, RunStateMachine
from muster.lifecycle.states import RunState
from muster.rundir import RunPaths

TOKEN = b"bench"
AT_ONCE = 100  # handshakes in progress: each has a deadline, and all share one process here
BYTES_ACKED = 120  # offsets in Linux's struct tcp_info: what was sent, and acknowledged; and what was received
HANDSHAKE_MESSAGES = 4


class _Lead:
    """Listens, feeds arrivals to the protocol, welcomes; measures itself."""

    def __init__(self, nodes: int, spares: int) -> None:
        self._protocol = RunStateMachine(
            RunConfig([f"n{rank}" for rank in range(nodes)], ray=False, spares=spares), 0.0
        )
        run = RunPaths("/nonexistent/run")
        self._members = Connections(Identity(0, "n0", run, run.attempt(0), local=True), TOKEN)
        self._members.on_task, self._members.on_join = self._keep, self._joined
        self._tasks: set[asyncio.Task[None]] = set()
        self._began: tuple[float, float] | None = None
        self.closed: asyncio.Future[dict[str, float]]

    async def listen(self) -> int:
        self.closed = asyncio.get_running_loop().create_future()
        port = await self._members.listen()
        self._keep(self._members.beat())
        return port

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _joined(self, rank: int, *_: Any) -> None:
        self._began = self._began or (time.perf_counter(), time.process_time())
        self._members.send(rank, "welcome", cycle=0, ray=None, interface=None)
        self._protocol.handle(Arrived(rank, f"n{rank}"), time.monotonic())
        if self._protocol.state is not RunState.GATHERING and not self.closed.done():
            wall, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
            self.closed.set_result({"close_s": wall, "close_cpu_s": cpu})


def _serve(pipe: Connection, nodes: int, spares: int) -> None:
    """In the leader's process. Each word from the pipe is answered with a figure."""
    raise_limits()
    asyncio.run(_answer(pipe, _Lead(nodes, spares)))


async def _answer(pipe: Connection, leader: _Lead) -> None:
    loop = asyncio.get_running_loop()
    pipe.send(await leader.listen())
    pipe.send(await leader.closed)
    while (await loop.run_in_executor(None, pipe.recv)) != "end":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        pipe.send({"cpu_s": time.process_time(), "memory_mb": peak})


@contextlib.contextmanager
def leader_process(nodes: int, spares: int) -> Iterator[Connection]:
    """The pipe to it: first its port comes, then the figures of the round."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, nodes, spares), daemon=True)
    process.start()
    theirs.close()  # so that its end is seen, should it fail
    try:
        yield ours
        ours.send("end")
        process.join(10.0)
    finally:
        if process.is_alive():
            process.kill()
        process.join()


@dataclass
class Traffic:
    """Of one agent."""

    messages: int = HANDSHAKE_MESSAGES
    bytes: int = 0


class LightAgents:
    """Connect with the real handshake, answer beats, and do nothing else."""

    def __init__(self, nodes: int) -> None:
        raise_limits()
        self._nodes = nodes
        self._channels: list[Channel] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.traffic = [Traffic() for _ in range(nodes)]

    async def join(self, port: int) -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._join(rank, port, gate) for rank in range(self._nodes)))

    async def _join(self, rank: int, port: int, gate: asyncio.Semaphore) -> None:
        greeting = {"rank": rank, "host": f"n{rank}", "attempt": 0}
        async with gate:
            while True:
                try:
                    channel = await connect(["127.0.0.1"], port, TOKEN, greeting)
                    break
                except ChannelError as error:
                    print(f"n{rank}: {error}; trying again", file=sys.stderr)
        self._channels.append(channel)
        self._tasks.append(asyncio.create_task(self._speak(rank, channel)))

    async def _speak(self, rank: int, channel: Channel) -> None:
        traffic = self.traffic[rank]
        while (message := await channel.receive()) is not None:
            traffic.messages += 1
            if message["type"] == "beat":
                traffic.messages += 1
                channel.send("beat", at=message["at"], version=0, time=0.0)
            traffic.bytes = _carried(channel)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        for channel in self._channels:
            channel.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _carried(channel: Channel) -> int:
    """Bytes in both directions, as the kernel counts them, without headers."""
    tcp: socket.socket = channel._writer.get_extra_info("socket")
    info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    sent, received = struct.unpack_from("=QQ", info, BYTES_ACKED)
    return int(sent + received)
