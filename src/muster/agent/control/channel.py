"""The control channel: one TCP connection per agent, JSON lines, both ends proving that they know the run's token.

    lead -> agent   {"nonce": a}
    agent -> lead   {"nonce": b, "proof": hmac(token, "agent" a b), "rank": ..}
    lead -> agent   {"proof": hmac(token, "lead" a b)}          or the connection ends
    agent -> lead   {"chosen": true}                            on one connection; it ends the others

The token itself never travels. The agent checks the leader too: with several addresses tried at once, one of them may
be another host's listener on the same port. Several may be the leader's: the agent chooses, since only one side may,
and the two need not see the handshakes complete in the same order.
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

from muster.election.membership import FENCE_S

HANDSHAKE_TIMEOUT_S = 5.0
HEARTBEAT_INTERVAL_S = 2.5  # the leader speaks at least this often, and is answered at once
HEARTBEAT_TIMEOUT_S = FENCE_S  # who has not been heard for this long is taken for lost, and has been fenced by then
MESSAGE_MAX_BYTES = 1 << 20
HEAD_START_S = 0.25  # before the next address is tried too: where several work, all agents shall choose the same

# What a handshake with a stranger may end in. RecursionError: JSON nested ten thousand deep.
_HANDSHAKE_ERRORS = (OSError, ValueError, KeyError, TypeError, RecursionError, asyncio.TimeoutError)


class ChannelError(Exception):
    """No authenticated connection could be made."""


def line_of(kind: str, fields: Mapping[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


class Channel:
    """An authenticated connection; `receive` returns None when the other side is gone or has fallen silent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.timed_out = False  # how it was lost: no word for too long, or an ended connection

    @property
    def local_address(self) -> str:
        """This end's address: one that the other end has proved it can reach."""
        return _plain(self._writer.get_extra_info("sockname")[0])

    @property
    def open(self) -> bool:
        return not self._writer.is_closing()

    def send(self, kind: str, **fields: Any) -> None:
        """Queue a message; a lost peer is noticed by `receive`."""
        self.send_line(line_of(kind, fields))

    def send_line(self, line: bytes) -> None:
        """Queue a message that `line_of` has made."""
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
        """Keep the other side sure of us, until the connection is closed."""
        while not self._writer.is_closing():
            self.send("beat")
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def flush(self) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), HANDSHAKE_TIMEOUT_S)

    def close(self) -> None:
        self._writer.close()


def listen(loopback_only: bool) -> socket.socket:
    """A listening socket on a port of the kernel's choice, for IPv4 and IPv6 alike where there are both."""
    if loopback_only:
        return socket.create_server(("127.0.0.1", 0), backlog=4096)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", 0), backlog=4096)


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> tuple[Channel, dict[str, Any]] | None:
    """The leader's half of the handshake: the channel and the agent's greeting, or None for a stranger."""
    ours = secrets.token_hex(16)
    try:
        await _say(writer, {"nonce": ours})
        greeting = await _hear(reader)
        if not hmac.compare_digest(str(greeting["proof"]), _proof(token, "agent", ours, greeting["nonce"])):
            raise ChannelError("wrong token")
        await _say(writer, {"proof": _proof(token, "lead", ours, greeting["nonce"])})
        await _hear(reader)
    except (ChannelError, *_HANDSHAKE_ERRORS):
        writer.close()
        return None
    return Channel(reader, writer), greeting


async def connect(addresses: Sequence[str], port: int, token: bytes, greeting: dict[str, Any]) -> Channel:
    """Try every address, each with a short head start before the next; the first that proves to be our leader wins."""
    tries = [
        asyncio.ensure_future(_try(address, port, token, greeting, after=HEAD_START_S * place))
        for place, address in enumerate(addresses)
    ]
    chosen, errors = None, []
    try:
        for done in asyncio.as_completed(tries):
            try:
                chosen = await done
                await _say(chosen._writer, {"chosen": True})
                return chosen
            except (ChannelError, *_HANDSHAKE_ERRORS) as error:
                chosen = None
                errors.append(str(error) or type(error).__name__)
    finally:
        for task in tries:
            if not task.cancel() and not task.cancelled() and task.exception() is None and task.result() is not chosen:
                task.result().close()
    raise ChannelError(f"the leader answered at none of {', '.join(addresses)} port {port}: {'; '.join(errors)}")


async def _try(address: str, port: int, token: bytes, greeting: dict[str, Any], after: float) -> Channel:
    await asyncio.sleep(after)
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection(address, port, limit=MESSAGE_MAX_BYTES), HANDSHAKE_TIMEOUT_S
    )
    try:
        theirs, ours = (await _hear(reader))["nonce"], secrets.token_hex(16)
        await _say(writer, {**greeting, "nonce": ours, "proof": _proof(token, "agent", theirs, ours)})
        answer = await _hear(reader)
        if not hmac.compare_digest(str(answer["proof"]), _proof(token, "lead", theirs, ours)):
            raise ChannelError(f"{address} is not our lead")
    except BaseException:  # cancellation included: another address was quicker
        writer.close()
        raise
    return Channel(reader, writer)


def _proof(token: bytes, side: str, leader_nonce: str, agent_nonce: str) -> str:
    return hmac.new(token, f"{side} {leader_nonce} {agent_nonce}".encode(), hashlib.sha256).hexdigest()


async def _say(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await asyncio.wait_for(writer.drain(), HANDSHAKE_TIMEOUT_S)


async def _hear(reader: asyncio.StreamReader) -> dict[str, Any]:
    line = await asyncio.wait_for(reader.readline(), HANDSHAKE_TIMEOUT_S)
    if not line:
        raise ChannelError("connection closed during the handshake")
    message: dict[str, Any] = json.loads(line)
    return message


def _plain(address: str) -> str:
    """An IPv4 address that came over a dual-stack socket, without its ::ffff: prefix and without a zone."""
    return address[7:] if address.startswith("::ffff:") else address.partition("%")[0]
