"""The control channel: one TCP connection per agent with JSON lines. Both ends prove that they know the run's token.

    leader -> agent   {"nonce": a, "protocol": version}
    agent -> leader   {"nonce": b, "proof": hmac(token, "agent" a b), "protocol": version, "greeting": {..}}
    leader -> agent   {"proof": hmac(token, "lead" a b), "protocol": version}     or the connection ends
    agent -> leader   {"chosen": true}                          on one connection; it ends the others

The token itself is never sent. The agent also authenticates the leader: of several addresses tried at once, one may
belong to another host's listener on the same port. If several reach the leader, only the agent chooses one, since the
two sides may see the handshakes complete in different orders. Versions are compared once the peer is authenticated,
by both sides, so that both report a mismatch; the handshake itself must stay the same in all versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any

from muster.agent.control.codec import MESSAGE_MAX_BYTES, Message, MessageError, MessageProtocol, MessageRegistry
from muster.agent.event_loop import sleep_by_monotonic_clock, stopped_seconds
from muster.election.timing import FENCE_S

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
HEARTBEAT_INTERVAL_S = 2.5  # the leader sends at least this often; agents answer at once
HEARTBEAT_TIMEOUT_S = FENCE_S  # a peer that is silent for this long counts as lost, and has been fenced by then
ADDRESS_HEAD_START_S = 0.25  # before the next address is tried: of several that work, all agents choose the same
READ_BYTES = 1 << 16
SILENCE_CHECKS = 4  # in a heartbeat timeout; one that is late by more than their interval shows that the loop stalled

# Errors of a handshake with an unknown peer. RecursionError: JSON nested ten thousand levels deep.
_HANDSHAKE_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, asyncio.TimeoutError)


class ChannelError(Exception):
    """No authenticated connection could be made."""


class ProtocolMismatch(Exception):
    """The authenticated peer speaks another version of the protocol. It makes no sense to try again."""


class ChannelReader(asyncio.StreamReader):
    """Remembers when the last data came, and can be ended by this side."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=MESSAGE_MAX_BYTES, loop=loop)
        self.last_data = loop.time()
        self._clock = loop.time
        self._ended = False

    def feed_data(self, data: Any) -> None:
        self.last_data = self._clock()
        if not self._ended:
            super().feed_data(data)

    def set_exception(self, exc: BaseException) -> None:
        """Handle the loss of the connection like its end: what came before it is still read.

        A peer may say farewell and close. If this side writes to it before it reads that, the write fails, and the
        farewell may be in this buffer or in the socket's, which is still open here.
        """
        transport = getattr(self, "_transport", None)
        connection = transport.get_extra_info("socket") if transport is not None else None
        with contextlib.suppress(OSError):
            while connection is not None and (data := os.read(connection.fileno(), READ_BYTES)):
                self.feed_data(data)
        self.feed_eof()

    def end(self) -> None:
        """End the input here and drop what still comes; the connection stays open."""
        self._ended = True
        self.feed_eof()


class Channel:
    """An authenticated connection. `receive` returns None when the peer is lost; `loss_reason` states how."""

    def __init__(
        self,
        reader: ChannelReader,
        writer: asyncio.StreamWriter,
        peer: str,
        incoming: MessageRegistry,
        outgoing: MessageRegistry,
    ) -> None:
        """`peer` is the peer's name in errors."""
        self._reader, self._writer, self.peer = reader, writer, peer
        self._incoming, self._outgoing = incoming, outgoing
        self._receiving = False
        self._silence_from = 0.0  # loop time before which silence does not count
        self._stopped_s = 0.0  # for which this process was stopped before the last check
        self._timer: asyncio.TimerHandle | None = None  # the next check for silence
        self.timed_out = False  # the peer was lost by silence, not by the end of the connection
        self.violation: str | None = None  # the invalid message by which the peer was lost

    @property
    def local_address(self) -> str:
        """This end's address, which the peer has proved to reach."""
        return _without_mapping(self._writer.get_extra_info("sockname")[0])

    @property
    def remote_address(self) -> str:
        """The peer's address, which this end has reached."""
        return _without_mapping(self._writer.get_extra_info("peername")[0])

    @property
    def open(self) -> bool:
        return not self._writer.is_closing()

    @property
    def loss_reason(self) -> str:
        """How the peer was lost, unless by silence."""
        if self.violation is not None:
            return f"sent an invalid message: {self.violation}"
        return "is gone: its connection ended"

    def encode(self, message: Message) -> bytes:
        """Return the line for `send_line`. Raise MessageError if it is too long."""
        return self._outgoing.encode(message)

    def send(self, message: Message) -> None:
        """Queue a message. `receive` detects a lost peer. Raise MessageError if the message is too long."""
        self.send_line(self._outgoing.encode(message))

    def send_line(self, line: bytes) -> None:
        """Queue a message from `encode`."""
        if self.open:
            self._writer.write(line)

    async def receive(self) -> Message | None:
        self._receiving = True
        if self._timer is None:
            self._silence_from, self._stopped_s = asyncio.get_running_loop().time(), stopped_seconds()
            self._check_silence(self._silence_from)
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        except ValueError:
            self.violation = f"longer than {MESSAGE_MAX_BYTES} bytes"
            logger.error("%s sent an invalid message: %s", self.peer, self.violation)
            return None
        finally:
            self._receiving = False
        if not line.endswith(b"\n"):
            return None
        try:
            return self._incoming.decode(line)
        except MessageError as error:
            self.violation = str(error)
            logger.error("%s sent an invalid message: %s", self.peer, error)
            return None

    def _check_silence(self, due: float) -> None:
        """Check whether the peer is silent, as long as messages are awaited. `due`: the time of this check.

        Silence is the time since the last data was read. The loop reads pending input before it runs a timer. While
        the loop stalls, this side sends nothing that a peer could answer: then the time starts again. So it does after
        this process was stopped: the peer may have been stopped, too, and may be resumed a moment later.
        """
        loop = asyncio.get_running_loop()
        now, interval = loop.time(), HEARTBEAT_TIMEOUT_S / SILENCE_CHECKS
        self._timer = None
        if not self._receiving or not self.open:
            return  # the next `receive` checks
        before, self._stopped_s = self._stopped_s, stopped_seconds()
        if now - due > interval or self._stopped_s - before > interval:
            self._silence_from = now
        end = max(self._reader.last_data, self._silence_from) + HEARTBEAT_TIMEOUT_S
        if now < end:
            due = min(now + interval, end)
            self._timer = loop.call_at(due, self._check_silence, due)
        else:
            self.timed_out = True
            self._reader.end()

    async def keep_alive(self, message: Message) -> None:
        """Send this message as a heartbeat until the connection is closed."""
        while not self._writer.is_closing():
            self.send(message)
            await sleep_by_monotonic_clock(HEARTBEAT_INTERVAL_S)

    async def flush(self) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), HANDSHAKE_TIMEOUT_S)

    def close(self) -> None:
        self._writer.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def listen(loopback_only: bool) -> socket.socket:
    """Return a listening socket on a port chosen by the kernel, for IPv4 and, where available, IPv6."""
    if loopback_only:
        return socket.create_server(("127.0.0.1", 0), backlog=4096)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", 0), backlog=4096)


async def serve(
    on_connection: Callable[[ChannelReader, asyncio.StreamWriter], None], listener: socket.socket
) -> asyncio.AbstractServer:
    """Accept connections on the socket. `on_connection` starts a task that calls `accept`."""
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(ChannelReader(loop), on_connection, loop=loop)  # type: ignore[arg-type]

    return await loop.create_server(protocol, sock=listener)


async def accept(
    reader: ChannelReader, writer: asyncio.StreamWriter, token: bytes, protocol: MessageProtocol
) -> tuple[Channel, Message] | None:
    """Do the leader's half of the handshake. Return the channel and the agent's greeting; None for a rejected peer.

    An unknown peer is rejected without an answer; one that knows the token and is rejected nevertheless is logged.
    """
    nonce = secrets.token_hex(16)
    try:
        await _write_message(writer, {"nonce": nonce, "protocol": protocol.version})
        answer = await _read_message(reader)
        if not hmac.compare_digest(str(answer["proof"]), _proof(token, "agent", nonce, answer["nonce"])):
            raise ChannelError("wrong token")
        proof = _proof(token, "lead", nonce, answer["nonce"])
        await _write_message(writer, {"proof": proof, "protocol": protocol.version})
        host = str((answer.get("greeting") or {}).get("host") or writer.get_extra_info("peername")[0])
        own = protocol.server_name.replace("the", "this", 1)
        mismatch = protocol.mismatch(host, answer.get("protocol", 0), own)
        if mismatch is not None:
            logger.error("rejected: %s", mismatch)
            raise ChannelError(mismatch)
        try:
            greeting = protocol.greeting.from_record(answer["greeting"])
        except MessageError as error:
            logger.error("rejected: %s sent an invalid message: %s", host, error)
            raise
        await _read_message(reader)
    except (ChannelError, *_HANDSHAKE_ERRORS):
        writer.close()
        return None
    except BaseException:  # cancelled
        writer.close()
        raise
    return Channel(reader, writer, host, protocol.client, protocol.server), greeting


async def connect(
    addresses: Sequence[str], port: int, token: bytes, protocol: MessageProtocol, greeting: Message
) -> Channel:
    """Connect to every address, each with a head start before the next, and return the first authenticated channel.

    Raises ChannelError, with the reason of every address, if no address leads to this run's leader; ProtocolMismatch
    if the leader speaks another version of the protocol.
    """
    record = protocol.greeting.record(greeting)
    tries = [
        asyncio.ensure_future(_connect_one(address, port, token, protocol, record, delay=ADDRESS_HEAD_START_S * index))
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


async def _connect_one(
    address: str, port: int, token: bytes, protocol: MessageProtocol, greeting: dict[str, Any], delay: float
) -> Channel:
    await asyncio.sleep(delay)
    peer = f"{protocol.server_name} at {address}"
    reader, writer = await asyncio.wait_for(_open_connection(address, port), HANDSHAKE_TIMEOUT_S)
    try:
        leader_nonce, nonce = (await _read_message(reader))["nonce"], secrets.token_hex(16)
        proof = _proof(token, "agent", leader_nonce, nonce)
        introduction = {"nonce": nonce, "proof": proof, "protocol": protocol.version, "greeting": greeting}
        await _write_message(writer, introduction)
        answer = await _read_message(reader)
        if not hmac.compare_digest(str(answer["proof"]), _proof(token, "lead", leader_nonce, nonce)):
            raise ChannelError(f"{address} is not the leader of this run")
        mismatch = protocol.mismatch(peer, answer.get("protocol", 0), "this node")
        if mismatch is not None:
            raise ProtocolMismatch(mismatch)
    except BaseException:  # including cancellation, when another address was faster
        writer.close()
        raise
    return Channel(reader, writer, peer, protocol.server, protocol.client)


async def _open_connection(address: str, port: int) -> tuple[ChannelReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = ChannelReader(loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, address, port)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


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
