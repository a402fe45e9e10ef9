"""The leader's connections: admission of agents, the events they post, requests, and lost agents."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.conftest import DEADLINE_S, GREETING, TOKEN, identity, next_event, serve_as_leader

from muster.agent import event_loop
from muster.agent.control import connections as connections_module
from muster.agent.control.channel import Channel, connect
from muster.agent.control.connections import (
    AgentJoined,
    AgentLost,
    AgentMessage,
    AgentRejected,
    Connections,
    HeartbeatAnswered,
)
from muster.agent.control.messages import (
    CONTROL_PROTOCOL,
    Dismissal,
    DumpStacks,
    Greeting,
    Heartbeat,
    HeartbeatAnswer,
    Note,
    Refusal,
)
from muster.agent.leader.inbox import Inbox
from muster.process import running_time


class Served:
    """Connections of a leader, and the inbox to which they post."""

    def __init__(self, inbox: Inbox, connections: Connections) -> None:
        self.inbox, self.connections = inbox, connections

    async def connect(self, greeting: Greeting = GREETING) -> Channel:
        port = self.connections._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        return await connect(["127.0.0.1"], port, TOKEN, CONTROL_PROTOCOL, greeting)

    async def join(self) -> Channel:
        agent = await self.connect()
        assert (await next_event(self.inbox, AgentJoined)).greeting == GREETING
        return agent


@pytest.fixture
async def served(tmp_path: Path) -> Served:
    inbox = Inbox()
    return Served(inbox, await serve_as_leader(identity(tmp_path, 0), 0, inbox))


def test_heartbeats_are_sent_on_time_by_a_leader_that_rarely_gets_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers of the loop count only a part of each gap; the members would hear nothing for too long."""
    monkeypatch.setattr(running_time, "STALL_S", 0.02)
    monkeypatch.setattr(event_loop, "STALL_S", 0.02)
    monkeypatch.setattr(connections_module, "HEARTBEAT_INTERVAL_S", 0.1)
    gap_s, gaps, beats = 0.12, 0, []

    async def lead() -> None:
        nonlocal gaps
        connections = Connections(identity(tmp_path, 0), TOKEN, Inbox())
        monkeypatch.setattr(connections, "beat_once", lambda: beats.append(gaps))
        beating = asyncio.ensure_future(connections.beat())
        while len(beats) < 4:
            time.sleep(gap_s)
            gaps += 1
            await asyncio.sleep(0)
        beating.cancel()

    event_loop.run(lead())
    # Each interval is over after one gap, and its task has a turn after two more; with timers of the loop it takes ten.
    assert beats[-1] <= 1 + 3 * 3


async def test_a_second_connection_of_one_node_is_refused_not_dismissed(served: Served) -> None:
    await served.join()
    again = await served.connect(replace(GREETING, host="twin"))
    reason = "twin joined as node 3, but n3 has joined as that node before"
    assert await asyncio.wait_for(again.receive(), DEADLINE_S) == Refusal(reason)
    rejected = await next_event(served.inbox, AgentRejected)
    assert (rejected.greeting.host, rejected.reason) == ("twin", reason)


async def test_an_agent_of_another_attempt_is_dismissed(served: Served) -> None:
    old = await served.connect(replace(GREETING, attempt=7))
    assert await asyncio.wait_for(old.receive(), DEADLINE_S) == Dismissal(0, None)


async def test_an_agent_that_connects_after_the_others_were_released_gets_the_same_message(served: Served) -> None:
    served.connections._farewell = Dismissal(7, "the driver exited with 7")
    late = await served.connect()
    assert await asyncio.wait_for(late.receive(), DEADLINE_S) == Dismissal(7, "the driver exited with 7")


async def test_messages_answers_and_the_loss_of_an_agent_are_posted_in_order(served: Served) -> None:
    agent = await served.join()
    before = time.monotonic()
    served.connections.beat_once()
    heartbeat = await asyncio.wait_for(agent.receive(), DEADLINE_S)
    assert isinstance(heartbeat, Heartbeat)
    agent.send(Note("first"))
    agent.send(HeartbeatAnswer(heartbeat.at, 5, 1.0))
    agent.send(HeartbeatAnswer(None, 6, 2.0))
    agent.close()
    events = [await asyncio.wait_for(served.inbox.next(), DEADLINE_S) for _ in range(4)]
    assert events[:3] == [
        AgentMessage(3, Note("first")),
        HeartbeatAnswered(3, heartbeat.at, 5),
        HeartbeatAnswered(3, None, 6),
    ]
    lost = events[3]
    assert isinstance(lost, AgentLost) and (lost.node_index, lost.how) == (3, "is gone: its connection ended")
    assert before <= lost.last_heard == heartbeat.at


async def test_a_refused_agent_is_told_why_and_its_loss_is_not_posted(served: Served) -> None:
    wrong = await served.join()
    served.connections.refuse(3, "you are n4")
    assert await asyncio.wait_for(wrong.receive(), DEADLINE_S) == Refusal("you are n4")
    wrong.send(Note("not heard"))
    right = await served.join()
    right.send(Note("heard"))
    assert (await next_event(served.inbox, AgentMessage)).message == Note("heard")
    await asyncio.wait_for(served.connections.release(Dismissal(0, None)), DEADLINE_S)
    assert await asyncio.wait_for(right.receive(), DEADLINE_S) == Dismissal(0, None)


async def test_a_request_is_answered_although_a_member_is_lost_meanwhile(served: Served) -> None:
    member = await served.join()
    asking = asyncio.ensure_future(served.connections.ask(DumpStacks(), 1000.0))
    await asyncio.sleep(0)
    member.close()
    assert await asyncio.wait_for(asking, DEADLINE_S) == [None]
    assert (await next_event(served.inbox, AgentLost)).last_heard <= time.monotonic()


async def test_what_waited_for_an_answer_comes_after_the_loss_of_the_agent(served: Served) -> None:
    """The end of a driver that follows from a lost node is posted after that loss."""
    member = await served.join()
    waiting = asyncio.ensure_future(served.connections.wait_for_all_answers())
    waiting.add_done_callback(lambda _: served.inbox.post(AgentMessage(0, Note("all have answered"))))
    await asyncio.sleep(0)
    member.close()
    events = [await asyncio.wait_for(served.inbox.next(), DEADLINE_S) for _ in range(2)]
    assert [type(event) for event in events] == [AgentLost, AgentMessage]


@pytest.mark.parametrize(("answered", "isolated"), [({}, True), ({4}, False)])
async def test_a_node_that_hears_from_no_other_is_isolated(
    served: Served, monkeypatch: pytest.MonkeyPatch, answered: set[int], isolated: bool
) -> None:
    """Its own agent answers all the same."""
    monkeypatch.setattr(connections_module, "HEARTBEAT_TIMEOUT_S", 0.0)
    agents = [await served.connect(replace(GREETING, node_index=node_index)) for node_index in (0, 3, 4)]
    for _ in agents:
        await next_event(served.inbox, AgentJoined)
    for node_index in {0, *answered}:
        served.connections._echoed[node_index] = time.monotonic() + 1000.0
    assert served.connections._is_isolated() == isolated


async def test_one_of_two_nodes_cannot_know_which_is_isolated(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "HEARTBEAT_TIMEOUT_S", 0.0)
    await served.join()
    assert not served.connections._is_isolated()
