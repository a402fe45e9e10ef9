"""A leader's real listener and state machine in a separate process, and many minimal agents in one process.

Only `_Leader` depends on the interface of `agent/control/connections.py`.
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
MAX_HANDSHAKES = 100  # in progress: each has a deadline, and all share one process here
BYTES_ACKED = 120  # offset in Linux's struct tcp_info of the bytes sent and acknowledged; the bytes received follow
HANDSHAKE_MESSAGES = 4


class _Leader:
    """Listens, feeds arrivals to the state machine, sends welcomes; measures itself."""

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
    """Run the leader in its process; it answers each request on the pipe with measurements."""
    raise_limits()
    asyncio.run(_answer(pipe, _Leader(nodes, spares)))


async def _answer(pipe: Connection, leader: _Leader) -> None:
    loop = asyncio.get_running_loop()
    pipe.send(await leader.listen())
    pipe.send(await leader.closed)
    while (await loop.run_in_executor(None, pipe.recv)) != "end":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        pipe.send({"cpu_s": time.process_time(), "memory_mb": peak})


@contextlib.contextmanager
def leader_process(nodes: int, spares: int) -> Iterator[Connection]:
    """Start the leader; yield the pipe to it, which delivers the port first and then the measurements of the round."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, nodes, spares), daemon=True)
    process.start()
    theirs.close()  # so that reading fails if the process ends
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
    """Messages and bytes of one agent."""

    messages: int = HANDSHAKE_MESSAGES
    bytes: int = 0


class LightAgents:
    """Agents that connect with the real handshake and answer heartbeats."""

    def __init__(self, nodes: int) -> None:
        raise_limits()
        self._nodes = nodes
        self._channels: list[Channel] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.traffic = [Traffic() for _ in range(nodes)]

    async def join(self, port: int) -> None:
        limit = asyncio.Semaphore(MAX_HANDSHAKES)
        await asyncio.gather(*(self._join(rank, port, limit) for rank in range(self._nodes)))

    async def _join(self, rank: int, port: int, limit: asyncio.Semaphore) -> None:
        greeting = {"rank": rank, "host": f"n{rank}", "attempt": 0}
        async with limit:
            while True:
                try:
                    channel = await connect(["127.0.0.1"], port, TOKEN, greeting)
                    break
                except ChannelError as error:
                    print(f"n{rank}: {error}; trying again", file=sys.stderr)
        self._channels.append(channel)
        self._tasks.append(asyncio.create_task(self._answer_heartbeats(rank, channel)))

    async def _answer_heartbeats(self, rank: int, channel: Channel) -> None:
        traffic = self.traffic[rank]
        while (message := await channel.receive()) is not None:
            traffic.messages += 1
            if message["type"] == "beat":
                traffic.messages += 1
                channel.send("beat", at=message["at"], version=0, time=0.0)
            traffic.bytes = _transferred(channel)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for channel in self._channels:
            channel.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _transferred(channel: Channel) -> int:
    """Return the bytes in both directions, as the kernel counts them, without headers."""
    tcp: socket.socket = channel._writer.get_extra_info("socket")
    info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    sent, received = struct.unpack_from("=QQ", info, BYTES_ACKED)
    return int(sent + received)
