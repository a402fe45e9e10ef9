"""The control channel: admission, rejection, and detection of a lost peer."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest
from tests.agent.conftest import DEADLINE_S, GREETING, TOKEN, Listener, Wire

from muster.agent.control import channel as channels
from muster.agent.control.channel import Channel, ChannelError, connect, listen
from muster.agent.control.messages import CONTROL_PROTOCOL, EndProcesses, Note, StopCheck

MakeWire = Callable[..., Awaitable[Wire]]


async def join(addresses: list[str], port: int, token: bytes = TOKEN) -> Channel:
    return await asyncio.wait_for(connect(addresses, port, token, CONTROL_PROTOCOL, GREETING), DEADLINE_S)


async def pair(leader: Listener) -> tuple[Channel, Channel]:
    """Both ends of an authenticated connection: the agent's, the leader's."""
    return await join(["127.0.0.1"], leader.port), await leader.channel()


# -- getting in -------------------------------------------------------------------------------------------------


async def test_an_agent_with_the_run_s_token_is_admitted_and_its_greeting_received(leader: Listener) -> None:
    agent = await join(["127.0.0.1"], leader.port)
    answer = await leader.answer()
    assert answer is not None
    channel, greeting = answer
    assert greeting == GREETING
    agent.send(Note("the end"))
    channel.send(EndProcesses(5.0))
    assert await channel.receive() == Note("the end")
    assert await agent.receive() == EndProcesses(5.0)


async def test_an_agent_with_another_token_is_refused(leader: Listener) -> None:
    with pytest.raises(ChannelError, match=r"127\.0\.0\.1 port \d+"):
        await join(["127.0.0.1"], leader.port, token=b"guessed")
    assert await leader.answer() is None


async def test_an_agent_refuses_a_leader_that_does_not_know_the_token() -> None:
    """A listener that admits every peer and answers with a proof made with another token."""

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"nonce": "0123"}\n')
        nonce = json.loads(await reader.readline())["nonce"]
        writer.write(json.dumps({"proof": channels._proof(b"guessed", "lead", "0123", nonce)}).encode() + b"\n")
        writer.close()  # Python 3.12 waits for it when the server is closed

    async with await asyncio.start_server(impostor, "127.0.0.1", 0) as server:
        with pytest.raises(ChannelError, match="not the leader of this run"):
            await join(["127.0.0.1"], server.sockets[0].getsockname()[1])


async def test_an_agent_s_proof_cannot_be_sent_back_to_it_as_the_leader_s() -> None:
    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"nonce": "0123"}\n')
        writer.write(await reader.readline())
        writer.close()

    async with await asyncio.start_server(mirror, "127.0.0.1", 0) as server:
        with pytest.raises(ChannelError, match="not the leader of this run"):
            await join(["127.0.0.1"], server.sockets[0].getsockname()[1])


async def test_a_recorded_handshake_cannot_be_replayed(leader: Listener, wire: MakeWire) -> None:
    tapped = await wire()
    await join(["127.0.0.1"], tapped.port)
    await leader.channel()
    reader, writer = await asyncio.open_connection("127.0.0.1", leader.port)
    await reader.readline()
    writer.writelines(line for side, line in tapped.heard if side == "agent")
    assert await leader.answer() is None
    writer.close()


async def test_the_token_is_never_sent(leader: Listener, wire: MakeWire) -> None:
    tapped = await wire()
    agent = await join(["127.0.0.1"], tapped.port)
    channel = await leader.channel()
    agent.send(Note("the end"))
    assert await channel.receive() == Note("the end")
    said = b"".join(line for _, line in tapped.heard)
    assert len(tapped.heard) >= 4
    assert TOKEN not in said and TOKEN.hex().encode() not in said


# -- strangers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b'{"nonce": 1}\n',
        b'{"nonce": {}, "proof": [1]}\n',
        b'{"nonce": "x", "proof": "y", "greeting": 7}\n',
        '{"nonce": "x", "proof": "grün"}\n'.encode(),
        b'{"nonce": "x", "proof": ""}\n',
        b"[" * 60_000 + b"\n",
        b"9" * 10_000 + b"\n",
        b"x" * 300_000,
        b"x" * 300_000 + b"\n",
        b"",
        b'{"nonce": "x", "pro',
    ],
    ids=lambda words: repr(words[:20]),
)
async def test_an_unknown_peer_is_rejected_and_the_next_agent_is_admitted(leader: Listener, words: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", leader.port)
    writer.write(words)
    writer.write_eof()
    assert await leader.answer() is None
    await pair(leader)
    writer.close()


async def test_a_silent_unknown_peer_is_rejected_after_the_timeout(
    leader: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "HANDSHAKE_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", leader.port)
    assert await leader.answer() is None
    await asyncio.wait_for(reader.read(), DEADLINE_S)  # up to the end: the leader has hung up
    writer.close()


async def test_a_silent_unknown_peer_does_not_delay_agents(leader: Listener) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", leader.port)
    await pair(leader)
    writer.close()


# -- several addresses ------------------------------------------------------------------------------------------


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    await silent(reader, writer)


@pytest.mark.parametrize("service", [silent, chatty])
async def test_addresses_that_are_dead_or_another_service_s_do_not_delay(
    leader: Listener, service: Callable[..., Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "HANDSHAKE_TIMEOUT_S", 600.0)  # whoever waited for a dead address would wait too long
    async with await asyncio.start_server(service, "127.0.0.3", leader.port):
        agent = await join(["127.0.0.2", "127.0.0.3", "127.0.0.1"], leader.port)
        channel = await leader.channel()
        channel.send(StopCheck())
        assert await agent.receive() == StopCheck()


async def test_when_no_address_answers_all_are_named_with_their_reasons() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ChannelError, match=r"none of 127\.0\.0\.1, 127\.0\.0\.2 port \d+: .*Errno 111.*; .*Errno 111"):
        await join(["127.0.0.1", "127.0.0.2"], port)


async def test_a_leader_reached_by_two_addresses_has_one_channel_and_it_is_the_agent_s(
    leader: Listener, wire: MakeWire
) -> None:
    """The two sides may see the handshakes complete in different orders."""
    heard, joined = asyncio.Event(), asyncio.Event()

    async def slow_there(side: str, line: bytes) -> None:
        if side == "agent" and b"proof" in line:
            await asyncio.wait_for(heard.wait(), DEADLINE_S)

    async def slow_back(side: str, line: bytes) -> None:
        if side == "lead" and b"proof" in line:
            heard.set()
            await asyncio.wait_for(joined.wait(), DEADLINE_S)

    one = await wire("127.0.0.2", hold=slow_back)
    await wire("127.0.0.3", one.port, hold=slow_there)
    agent = await join(["127.0.0.2", "127.0.0.3"], one.port)
    joined.set()
    answers = [await leader.answer(), await leader.answer()]
    (channel, _), *more = [answer for answer in answers if answer is not None]
    assert more == []
    channel.send(StopCheck())
    assert await asyncio.wait_for(agent.receive(), DEADLINE_S) == StopCheck()


# -- being gone -------------------------------------------------------------------------------------------------


async def test_the_end_of_the_connection_is_noticed_at_once_by_both_sides(leader: Listener) -> None:
    agent, channel = await pair(leader)
    waiting = asyncio.create_task(channel.receive())
    agent.close()
    assert await asyncio.wait_for(waiting, channels.HEARTBEAT_TIMEOUT_S / 3) is None
    agent, channel = await pair(leader)
    channel.close()
    assert await asyncio.wait_for(agent.receive(), channels.HEARTBEAT_TIMEOUT_S / 3) is None


async def test_a_truncated_message_counts_as_the_end(leader: Listener) -> None:
    agent, channel = await pair(leader)
    agent._writer.write(b'{"type": "go')
    agent.close()
    assert await asyncio.wait_for(channel.receive(), DEADLINE_S) is None


async def test_silence_counts_as_the_end_and_messages_reset_the_timeout(
    leader: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "HEARTBEAT_TIMEOUT_S", 0.5)
    agent, channel = await pair(leader)
    for _ in range(20):  # twice as long as silence would be tolerated
        agent.send(Note("alive"))
        assert await channel.receive() == Note("alive")
        await asyncio.sleep(0.05)
    assert await asyncio.wait_for(channel.receive(), DEADLINE_S) is None
    assert channel.timed_out


# -- addresses --------------------------------------------------------------------------------------------------


async def test_behind_a_dual_stack_listener_the_local_address_is_plain_ipv4() -> None:
    leader = await Listener().start(loopback_only=False)
    await join(["127.0.0.1"], leader.port)
    assert (await leader.channel()).local_address == "127.0.0.1"
    await leader.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
async def test_behind_a_dual_stack_listener_an_ipv6_address_is_itself() -> None:
    leader = await Listener().start(loopback_only=False)
    try:
        await join(["::1"], leader.port)
        assert (await leader.channel()).local_address == "::1"
    finally:
        await leader.close()


def test_a_loopback_listener_is_reachable_only_from_this_host() -> None:
    with listen(loopback_only=True) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


# -- the end of a connection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["buffered", "in the socket"])
async def test_what_a_peer_sent_before_it_closed_is_received_although_a_write_to_it_failed(
    leader: Listener, where: str
) -> None:
    """A leader that dismisses an agent closes at once; the agent may be writing at that time."""
    agent, channel = await pair(leader)
    if where == "in the socket":
        agent._writer.transport.pause_reading()  # type: ignore[attr-defined]
    channel.send(EndProcesses(1.0))
    channel.send(StopCheck())
    await channel.flush()
    channel.close()

    async def write_until_it_fails() -> None:
        while agent.open:
            agent.send(Note("still here"))
            await asyncio.sleep(0.005)

    await asyncio.wait_for(write_until_it_fails(), DEADLINE_S)
    received = [await asyncio.wait_for(agent.receive(), DEADLINE_S) for _ in range(3)]
    assert received == [EndProcesses(1.0), StopCheck(), None]


async def test_a_handshake_that_is_cancelled_closes_its_connection() -> None:
    listener = listen(loopback_only=True)
    accepting: asyncio.Queue[asyncio.Task[object]] = asyncio.Queue()
    server = await channels.serve(
        lambda reader, writer: accepting.put_nowait(
            asyncio.create_task(channels.accept(reader, writer, TOKEN, CONTROL_PROTOCOL))
        ),
        listener,
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
    assert b"nonce" in await asyncio.wait_for(reader.readline(), DEADLINE_S)
    (await accepting.get()).cancel()
    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    writer.close()
    server.close()
