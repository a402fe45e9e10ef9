"""Control messages: encoding of all types, versions, invalid and long lines of a peer, and a stalled event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.conftest import DEADLINE_S, GREETING, TOKEN, Listener, identity, next_event

from muster.agent import follower
from muster.agent.control import channel as channels
from muster.agent.control import codec
from muster.agent.control import messages as control
from muster.agent.control.channel import Channel, ProtocolMismatch, connect
from muster.agent.control.codec import MESSAGE_MAX_BYTES, Message, MessageRegistry, wire_name
from muster.agent.control.connections import AgentJoined, AgentLost, Connections
from muster.agent.control.messages import (
    CONTROL_PROTOCOL,
    Greeting,
    Heartbeat,
    HeartbeatAnswer,
    MembershipUpdate,
    Note,
)
from muster.agent.follower import Follower
from muster.agent.leader.inbox import Inbox, TimePassed
from muster.agent.node import _LAST_MESSAGES, NodeAgent
from muster.election.membership import first_membership
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.control import ControlKind
from muster.lifecycle.services import ServiceState
from muster.lifecycle.topology import UNKNOWN_LOCATION
from muster.process.lease import ProcessLease
from muster.rundir import create_exclusive
from muster.torch.messages import RENDEZVOUS_PROTOCOL

OWN, OTHER = CONTROL_PROTOCOL.version, CONTROL_PROTOCOL.version + 1
OTHER_VERSION = replace(CONTROL_PROTOCOL, version=OTHER)
REGISTRIES = [
    registry
    for protocol in (CONTROL_PROTOCOL, RENDEZVOUS_PROTOCOL)
    for registry in (protocol.server, protocol.client, protocol.greeting)
]
TYPES = [(registry, cls) for registry in REGISTRIES for cls in registry.types]
SERVER, CLIENT = CONTROL_PROTOCOL.server, CONTROL_PROTOCOL.client
finite = st.floats(allow_nan=False, allow_infinity=False)
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(),
    "float": finite,
    "str": st.text(),
    "bool": st.booleans(),
    "frozenset[int]": st.frozensets(st.integers(0, 20)),
    "tuple[str, ...]": st.lists(st.text(), max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(st.integers(), max_size=3).map(tuple),
    "Mapping[str, str]": st.dictionaries(st.text(), st.text(), max_size=3),
    "Mapping[str, int]": st.dictionaries(st.text(), st.integers(), max_size=3),
    "Mapping[str, Any]": st.dictionaries(st.text(), st.none() | st.integers() | st.lists(st.text()), max_size=3),
    "Mapping[str, float]": st.dictionaries(st.text(), finite, max_size=3),
    "ServiceState": st.sampled_from(ServiceState),
    "ControlKind": st.sampled_from(ControlKind),
}


def values(annotation: str, module: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field."""
    if annotation.endswith(" | None"):
        return st.none() | values(annotation[: -len(" | None")], module)
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        return st.lists(values(annotation[len("tuple[") : -len(", ...]")], module), max_size=3).map(tuple)
    return instances(getattr(module, annotation))


def instances(cls: type) -> st.SearchStrategy[Any]:
    assert is_dataclass(cls)
    module = sys.modules[cls.__module__]
    return st.builds(cls, **{field.name: values(str(field.type), module) for field in fields(cls)})


# -- encoding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("registry", "cls"), TYPES, ids=[cls.__name__ for _, cls in TYPES])
@settings(max_examples=10)
@given(data=st.data())
def test_every_message_survives_encoding_and_decoding(
    registry: MessageRegistry, cls: type[Message], data: st.DataObject
) -> None:
    message = data.draw(instances(cls))
    line = registry.encode(message)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    decoded = registry.decode(line)
    assert decoded == message and type(decoded) is cls


def test_the_membership_of_ten_thousand_nodes_is_a_short_message() -> None:
    assert len(SERVER.encode(MembershipUpdate(first_membership(10_000)))) < 250


def test_the_roster_that_every_joining_agent_is_sent_is_written_as_ranges_once() -> None:
    codec._ranges.cache_clear()
    membership = replace(first_membership(10_000), version=7)
    lines = {CONTROL_PROTOCOL.server.encode(control.MembershipUpdate(membership)) for _ in range(100)}
    assert len(lines) == 1
    assert codec._ranges.cache_info().misses == 2  # the roster, and the empty sets


def test_no_two_messages_of_one_direction_have_the_same_name() -> None:
    for registry in REGISTRIES:
        assert len({wire_name(cls) for cls in registry.types}) == len(registry.types)


def test_every_message_of_the_module_belongs_to_the_protocol() -> None:
    defined = {cls for cls in vars(control).values() if isinstance(cls, type) and issubclass(cls, Message)}
    assert defined - {Message} == {*SERVER.types, *CLIENT.types, *CONTROL_PROTOCOL.greeting.types}


def test_an_agent_handles_every_message_of_the_leader(tmp_path: Path) -> None:
    agent = NodeAgent(identity(tmp_path, 0), TOKEN, ProcessLease())
    assert {*agent._handlers, *_LAST_MESSAGES, Heartbeat, MembershipUpdate} == set(SERVER.types)


# -- invalid messages -----------------------------------------------------------------------------------------------


async def pair(leader: Listener) -> tuple[Channel, Channel]:
    """Both ends of an authenticated connection: the agent's, the leader's."""
    agent = await connect(["127.0.0.1"], leader.port, TOKEN, CONTROL_PROTOCOL, GREETING)
    return agent, await leader.channel()


async def test_a_peer_that_sends_an_invalid_message_is_lost_with_the_reason(
    leader: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    agent, channel = await pair(leader)
    agent.send_line(b'{"type": "note", "text": 7}\n')
    assert await asyncio.wait_for(channel.receive(), DEADLINE_S) is None
    assert channel.loss_reason == "sent an invalid message: note: text: must be str, not 7"
    assert "n3 sent an invalid message: note: text: must be str, not 7" in caplog.text


# -- versions -------------------------------------------------------------------------------------------------------


async def test_a_peer_of_another_version_is_rejected_by_both_sides_with_the_reason(
    leader: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ProtocolMismatch) as caught:
        await asyncio.wait_for(connect(["127.0.0.1"], leader.port, TOKEN, OTHER_VERSION, GREETING), DEADLINE_S)
    same = "all agents of a run must come from the same agent.pyz"
    assert str(caught.value) == f"the leader at 127.0.0.1 speaks control protocol {OWN}, this node {OTHER}: {same}"
    assert await leader.answer() is None
    assert f"n3 speaks control protocol {OTHER}, this leader {OWN}: {same}" in caplog.text


async def test_an_unknown_peer_cannot_end_an_agent_with_another_version() -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"nonce": "0123", "protocol": 7}\n{"proof": "0123", "protocol": 7}\n')
        await reader.read()
        writer.close()

    async with await asyncio.start_server(impostor, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(channels.ChannelError, match="not the leader of this run"):
            await asyncio.wait_for(connect(["127.0.0.1"], port, TOKEN, CONTROL_PROTOCOL, GREETING), DEADLINE_S)


def test_an_agent_of_another_version_exits_with_an_error_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> int:
        leader = await Listener(OTHER_VERSION).start()
        agent = identity(tmp_path, 1)
        create_exclusive(
            agent.attempt.leader(0), {"term": 0, "rank": 0, "addresses": ["127.0.0.1"], "port": leader.port}
        )
        code = await asyncio.wait_for(Follower(agent, TOKEN, ProcessLease()).run(), DEADLINE_S)
        await leader.close()
        return code

    with caplog.at_level(logging.ERROR, follower.__name__):
        assert asyncio.run(play()) == INFRASTRUCTURE_FAILED
    assert f"the leader at 127.0.0.1 speaks control protocol {OTHER}, this node {OWN}" in caplog.text


# -- long lines -----------------------------------------------------------------------------------------------------


async def test_the_longest_message_is_received(leader: Listener) -> None:
    agent, channel = await pair(leader)
    longest = Note("x" * (MESSAGE_MAX_BYTES - len(CLIENT.encode(Note("")))))
    assert len(CLIENT.encode(longest)) == MESSAGE_MAX_BYTES
    agent.send(longest)
    assert await asyncio.wait_for(channel.receive(), DEADLINE_S) == longest


async def test_a_longer_line_of_a_peer_is_reported(leader: Listener) -> None:
    agent, channel = await pair(leader)
    agent.send_line(b"x" * (MESSAGE_MAX_BYTES + 1) + b"\n")
    assert await asyncio.wait_for(channel.receive(), DEADLINE_S) is None
    assert channel.loss_reason == f"sent an invalid message: longer than {MESSAGE_MAX_BYTES} bytes"


# -- a stalled loop -------------------------------------------------------------------------------------------------

TIMEOUT_S = 0.4


async def test_after_a_stall_of_the_loop_a_message_in_the_socket_is_received(
    leader: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "HEARTBEAT_TIMEOUT_S", TIMEOUT_S)
    agent, channel = await pair(leader)
    waiting = asyncio.create_task(channel.receive())
    await asyncio.sleep(0)  # it waits now
    agent.send(Note("sent before the stall"))
    time.sleep(2 * TIMEOUT_S)
    assert await asyncio.wait_for(waiting, DEADLINE_S) == Note("sent before the stall")


async def test_a_stall_of_the_loop_does_not_count_as_silence(leader: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader sends no heartbeat while it stalls, so the agent has nothing to answer."""
    monkeypatch.setattr(channels, "HEARTBEAT_TIMEOUT_S", TIMEOUT_S)
    agent, channel = await pair(leader)
    waiting = asyncio.create_task(channel.receive())
    await asyncio.sleep(0)
    time.sleep(2 * TIMEOUT_S)
    await asyncio.sleep(0)  # the check that was due
    agent.send(Note("sent after the stall"))
    assert await asyncio.wait_for(waiting, DEADLINE_S) == Note("sent after the stall")


async def test_a_peer_that_stays_silent_after_a_stall_is_lost(
    leader: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "HEARTBEAT_TIMEOUT_S", TIMEOUT_S)
    _, channel = await pair(leader)
    waiting = asyncio.create_task(channel.receive())
    await asyncio.sleep(0)
    time.sleep(2 * TIMEOUT_S)
    assert await asyncio.wait_for(waiting, DEADLINE_S) is None
    assert channel.timed_out and channel.open


async def test_data_of_a_peer_that_was_given_up_does_not_end_the_connection(
    leader: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower keeps the connection of a silent leader: its end would report a dead agent."""
    monkeypatch.setattr(channels, "HEARTBEAT_TIMEOUT_S", 0.05)
    agent, channel = await pair(leader)
    assert await asyncio.wait_for(channel.receive(), DEADLINE_S) is None
    data = asyncio.Event()
    feed: Callable[[bytes], None] = channel._reader.feed_data

    def fed(received: bytes) -> None:
        feed(received)
        data.set()

    monkeypatch.setattr(channel._reader, "feed_data", fed)
    agent.send(Note("late"))
    await asyncio.wait_for(data.wait(), DEADLINE_S)
    assert channel.open and await channel.receive() is None


def test_a_leader_that_stalls_for_longer_than_the_timeout_loses_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents in a thread with another event loop go on while the leader's loop is blocked."""
    monkeypatch.setattr(channels, "HEARTBEAT_TIMEOUT_S", 2.0)
    monkeypatch.setattr("muster.agent.control.connections.HEARTBEAT_INTERVAL_S", 0.1)

    async def agents(port: int, count: int, over: asyncio.Event) -> None:
        async def answer(channel: Channel) -> None:
            while line := await channel._reader.readline():  # patient, unlike `receive`: the leader is silent too
                message = SERVER.decode(line)
                if isinstance(message, Heartbeat):
                    channel.send(HeartbeatAnswer(message.at, -1, 0.0))

        made = [Greeting(node_index, f"n{node_index}", 0, UNKNOWN_LOCATION, None, False) for node_index in range(count)]
        found = [await connect(["127.0.0.1"], port, TOKEN, CONTROL_PROTOCOL, greeting) for greeting in made]
        answering = [asyncio.ensure_future(answer(channel)) for channel in found]
        while not over.is_set():
            await asyncio.sleep(0.01)
        for channel in found:
            channel.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    async def play() -> None:
        inbox = Inbox()
        leader = Connections(identity(tmp_path, 0), TOKEN, inbox)
        port, over = await leader.listen(), asyncio.Event()
        thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(agents(port, 20, over))))
        for _ in range(20):
            await next_event(inbox, AgentJoined)
        beating = asyncio.create_task(leader.beat())
        await asyncio.wait_for(leader.wait_for_all_answers(), DEADLINE_S)
        time.sleep(3.0)  # blocks this loop; the agents send nothing, since they are asked nothing
        await asyncio.wait_for(leader.wait_for_all_answers(), DEADLINE_S)
        inbox.post(TimePassed())
        while not isinstance(event := await inbox.next(), TimePassed):
            assert not isinstance(event, AgentLost)
        beating.cancel()
        over.set()
        await asyncio.wait_for(thread, DEADLINE_S)
        leader.close_all()

    asyncio.run(play())
