"""The control channel: one TCP connection per agent with JSON lines. Both ends prove that they know the run's token.

    lead -> agent   {"nonce": a}
    agent -> lead   {"nonce": b, "proof": hmac(token, "agent" a b), "rank": ..}
    lead -> agent   {"proof": hmac(token, "lead" a b)}          or the connection ends
    agent -> lead   {"chosen": true}                            on one connection; it ends the others

The token itself is never sent. The agent also authenticates the leader: of several addresses tried at once, one may
belong to another host's listener on the same port. If several reach the leader, only the agent chooses one, since the
two sides may see the handshakes complete in different orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from muster.election.timing import FENCE_S

HANDSHAKE_TIMEOUT_S = 5.0
HEARTBEAT_INTERVAL_S = 2.5  # the leader sends at least this often; agents answer at once
HEARTBEAT_TIMEOUT_S = FENCE_S  # a peer that is silent for this long counts as lost, and has been fenced by then
MESSAGE_MAX_BYTES = 1 << 20
ADDRESS_HEAD_START_S = 0.25  # before the next address is tried: of several that work, all agents choose the same

# Errors of a handshake with an unknown peer. RecursionError: JSON nested ten thousand levels deep.
_HANDSHAKE_ERRORS = (OSError, ValueError, KeyError, TypeError, RecursionError, asyncio.TimeoutError)


class ChannelError(Exception):
    """No authenticated connection could be made."""


def encode(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return the message as the line that is sent."""
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


class Channel:
    """An authenticated connection. `receive` returns None when the peer has disconnected or timed out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.timed_out = False  # the peer was lost by silence, not by the end of the connection

    @property
    def local_address(self) -> str:
        """This end's address, which the peer has proved to reach."""
        return _without_mapping(self._writer.get_extra_info("sockname")[0])

    @property
    def open(self) -> bool:
        return not self._writer.is_closing()

    def send(self, kind: str, **fields: Any) -> None:
        """Queue a message. `receive` detects a lost peer."""
        self.send_line(encode(kind, fields))

    def send_line(self, line: bytes) -> None:
        """Queue a message from `encode`."""
        if self.open:
            self._writer.write(line)

    async def receive(self) -> dict[str, Any] | None:
        try:
            line = await asyncio.wait_for(self._reader.readline(), HEARTBEAT_TIMEOUT_S)
            return json.loads(line) if line.endswith(b"\n") else None
        except asyncio.TimeoutError:
            self.timed_out = True
            return None
        except (OSError, ValueError):
            return None

    async def beat(self) -> None:
        """Send heartbeats until the connection is closed."""
        while not self._writer.is_closing():
            self.send("beat")
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def flush(self) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), HANDSHAKE_TIMEOUT_S)

    def close(self) -> None:
        self._writer.close()


def listen(loopback_only: bool) -> socket.socket:
    """Return a listening socket on a port chosen by the kernel, for IPv4 and, where available, IPv6."""
    if loopback_only:
        return socket.create_server(("127.0.0.1", 0), backlog=4096)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", 0), backlog=4096)


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> tuple[Channel, dict[str, Any]] | None:
    """Do the leader's half of the handshake. Return the channel and the agent's greeting; None for an unknown peer."""
    nonce = secrets.token_hex(16)
    try:
        await _write_message(writer, {"nonce": nonce})
        greeting = await _read_message(reader)
        if not hmac.compare_digest(str(greeting["proof"]), _proof(token, "agent", nonce, greeting["nonce"])):
            raise ChannelError("wrong token")
        await _write_message(writer, {"proof": _proof(token, "lead", nonce, greeting["nonce"])})
        await _read_message(reader)
    except (ChannelError, *_HANDSHAKE_ERRORS):
        writer.close()
        return None
    return Channel(reader, writer), greeting


async def connect(addresses: Sequence[str], port: int, token: bytes, greeting: dict[str, Any]) -> Channel:
    """Connect to every address, each with a head start before the next, and return the first authenticated channel.

    Raises ChannelError, with the reason of every address, if no address leads to this run's leader.
    """
    tries = [
        asyncio.ensure_future(_connect_one(address, port, token, greeting, delay=ADDRESS_HEAD_START_S * index))
        for index, address in enumerate(addresses)
    ]
    chosen, errors = None, []
    try:
        for done in asyncio.as_completed(tries):
            try:
                chosen = await done
                await _write_message(chosen._writer, {"chosen": True})
                return chosen
            except (ChannelError, *_HANDSHAKE_ERRORS) as error:
                chosen = None
                errors.append(str(error) or type(error).__name__)
    finally:
        for task in tries:
            if not task.cancel() and not task.cancelled() and task.exception() is None and task.result() is not chosen:
                task.result().close()
    raise ChannelError(f"the leader answered at none of {', '.join(addresses)} port {port}: {'; '.join(errors)}")


async def _connect_one(address: str, port: int, token: bytes, greeting: dict[str, Any], delay: float) -> Channel:
    await asyncio.sleep(delay)
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection(address, port, limit=MESSAGE_MAX_BYTES), HANDSHAKE_TIMEOUT_S
    )
    try:
        leader_nonce, nonce = (await _read_message(reader))["nonce"], secrets.token_hex(16)
        await _write_message(writer, {**greeting, "nonce": nonce, "proof": _proof(token, "agent", leader_nonce, nonce)})
        answer = await _read_message(reader)
        if not hmac.compare_digest(str(answer["proof"]), _proof(token, "lead", leader_nonce, nonce)):
            raise ChannelError(f"{address} is not the leader of this run")
    except BaseException:  # including cancellation, when another address was faster
        writer.close()
        raise
    return Channel(reader, writer)


def _proof(token: bytes, side: str, leader_nonce: str, agent_nonce: str) -> str:
    return hmac.new(token, f"{side} {leader_nonce} {agent_nonce}".encode(), hashlib.sha256).hexdigest()


async def _write_message(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await asyncio.wait_for(writer.drain(), HANDSHAKE_TIMEOUT_S)


async def _read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    line = await asyncio.wait_for(reader.readline(), HANDSHAKE_TIMEOUT_S)
    if not line:
        raise ChannelError("connection closed during the handshake")
    message: dict[str, Any] = json.loads(line)
    return message


def _without_mapping(address: str) -> str:
    """Remove the ::ffff: prefix, which a dual-stack socket adds to an IPv4 address, or the zone."""
    return address[7:] if address.startswith("::ffff:") else address.partition("%")[0]
