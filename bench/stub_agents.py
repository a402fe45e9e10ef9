"""Agents without work: they join a real leader over loopback and send the answers that it waits for.

They run in one process. A line of the leader is only decoded as far as an answer needs it: the lists of endpoints in
some messages would cost the agents more than the leader, which encodes them once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from muster.agent.control.channel import Channel, ChannelError, connect
from muster.agent.control.codec import Message, MessageRegistry
from muster.agent.control.messages import (
    CONTROL_PROTOCOL,
    Greeting,
    HeartbeatAnswer,
    ProcessesEnded,
    ServiceServes,
    ServiceStatus,
    WorkStopped,
)
from muster.agent.health.limits import raise_limits
from muster.lifecycle.services import ServiceState
from muster.lifecycle.topology import UNKNOWN_LOCATION

PEERS = "box"  # the service whose instances get the endpoints of the others, as sandboxes do
MAX_HANDSHAKES = 100  # in progress: each has a deadline, and all share one process here
DECODED_BYTES = 2048  # lines up to this length are decoded completely
BYTES_RECEIVED = 128  # offset in Linux's struct tcp_info
_NUMBERS = re.compile(rb'"(version|cycle)": (\d+)')
_TEXTS = re.compile(rb'"(type|service)": "([^"]*)"')


class LeaderMessage(Message):
    """A message of the leader with the fields that a stub needs."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields


class _PartialRegistry(MessageRegistry):
    def decode(self, line: bytes) -> Message:
        if len(line) <= DECODED_BYTES:
            return LeaderMessage(json.loads(line))
        texts = {name.decode(): value.decode() for name, value in _TEXTS.findall(line[:DECODED_BYTES])}
        numbers = {name.decode(): int(value) for name, value in _NUMBERS.findall(line)}
        return LeaderMessage({**numbers, **texts})


PROTOCOL = dataclasses.replace(CONTROL_PROTOCOL, server=_PartialRegistry(CONTROL_PROTOCOL.server.types))


class StubAgents:
    """The agents of all nodes but the first."""

    def __init__(self, nodes: int, host: Callable[[int], str], token: bytes) -> None:
        raise_limits()
        self._host, self._token = host, token
        self.indexes = range(1, nodes)
        self._channels: dict[int, Channel] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._versions: dict[int, int] = {}
        self._received: dict[int, int] = {}  # bytes of closed connections
        self._changed = asyncio.Event()
        self._leader_lost = False
        self.cycles: dict[int, int] = {}  # of processes that an agent has started and not ended
        self.members_version = 0  # the newest that any agent got
        self.on_members: Callable[[int], None] = lambda version: None
        self.dismissed: set[int] = set()

    async def join(self, port: int) -> None:
        limit = asyncio.Semaphore(MAX_HANDSHAKES)
        await asyncio.gather(*(self._join(node_index, port, limit) for node_index in self.indexes))

    async def _join(self, node_index: int, port: int, limit: asyncio.Semaphore) -> None:
        greeting = Greeting(node_index, self._host(node_index), 0, UNKNOWN_LOCATION, None)
        async with limit:
            while True:
                try:
                    channel = await connect(["127.0.0.1"], port, self._token, PROTOCOL, greeting)
                    break
                except ChannelError as error:
                    print(f"node {node_index}: {error}; trying again", file=sys.stderr)
        self._channels[node_index] = channel
        self._tasks[node_index] = asyncio.create_task(self._follow(node_index, channel))

    async def _follow(self, node_index: int, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            assert isinstance(message, LeaderMessage)
            self._answer(node_index, channel, message.fields)
        if node_index not in self.dismissed and not self._leader_lost:
            self._leader_lost = True
            print(f"the leader {channel.loss_reason}", file=sys.stderr)
            self._changed.set()

    def _answer(self, node_index: int, channel: Channel, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind in ("heartbeat", "membership_update"):
            if kind == "membership_update":
                self._versions[node_index] = (
                    message["membership"]["version"] if "membership" in message else message["version"]
                )
            version = self._versions.get(node_index, -1)
            channel.send(HeartbeatAnswer(message.get("at"), version, time.monotonic()))
        elif kind == "start_instances":
            for name in message["services"]:
                url = f"http://127.{node_index >> 16}.{node_index >> 8 & 255}.{node_index & 255}:17001"
                peer = url if name == PEERS else None
                channel.send(ServiceStatus(name, ServiceState.READY, "", url, peer, 0, message["cycle"]))
        elif kind == "service_members":
            if message["version"] > self.members_version:
                self.members_version = message["version"]
                self.on_members(self.members_version)
            channel.send(ServiceServes(message["service"], message["version"], message["cycle"]))
        elif kind == "start_processes":
            self.cycles[node_index] = message["cycle"] if "cycle" in message else message["part"]["cycle"]
            self._changed.set()
        elif kind == "end_processes":
            self._end_processes(node_index)
        elif kind == "stop_work":
            self.cycles.pop(node_index, None)
            channel.send(WorkStopped(message["cycle"]))
        elif kind == "dismissal":
            self.dismissed.add(node_index)
            self._changed.set()
        elif kind in ("refusal", "retirement"):
            print(f"node {node_index}: {message}", file=sys.stderr)

    def _end_processes(self, node_index: int) -> None:
        if node_index in self.cycles:
            self._channels[node_index].send(ProcessesEnded(self.cycles.pop(node_index)))

    async def wait_for(self, condition: Callable[[], bool], timeout: float) -> None:
        end = time.monotonic() + timeout
        while not condition():
            if self._leader_lost:
                raise RuntimeError("the leader is lost")
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), end - time.monotonic())

    def running(self, cycle: int) -> int:
        """Return the number of agents with processes of this cycle."""
        return sum(one == cycle for one in self.cycles.values())

    def end_processes(self) -> None:
        """Let the processes of all agents end."""
        for node_index in list(self.cycles):
            self._end_processes(node_index)

    def lose(self, node_indexes: list[int]) -> None:
        """End the connections of these agents at once."""
        for node_index in node_indexes:
            channel = self._channels.pop(node_index)
            self._received[node_index] = _received(channel)
            self.cycles.pop(node_index, None)
            self._tasks.pop(node_index).cancel()
            channel.close()

    def bytes_received(self) -> int:
        """Return the bytes that the leader has sent to all agents, without headers."""
        return sum(self._received.values()) + sum(map(_received, self._channels.values()))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for channel in self._channels.values():
            channel.close()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _received(channel: Channel) -> int:
    tcp: socket.socket = channel._writer.get_extra_info("socket")
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:  # closed by the leader
        return 0
    return int(struct.unpack_from("=Q", info, BYTES_RECEIVED)[0])
