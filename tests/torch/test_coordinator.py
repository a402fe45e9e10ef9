"""The coordinator over real connections, message by message; nodes are bare channels, stores are plain objects."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import pytest
from tests.torch.conftest import DEADLINE_S

from muster.agent.control.channel import Channel, ChannelError, connect
from muster.agent.control.codec import Message
from muster.lifecycle.events import RunOutcome
from muster.torch.coordinator import Coordinator, coordinate
from muster.torch.elastic_types import ElasticConfig
from muster.torch.messages import (
    RENDEZVOUS_PROTOCOL,
    BackAtBarrier,
    JobOutcome,
    JoinRefused,
    JoinRequest,
    KeepAlive,
    LeaveJob,
    RoundForms,
    RoundReady,
    RoundRecalled,
    RoundRuns,
    TorchrunEnded,
)
from muster.torch.settings import RendezvousSettings

TOKEN = b"secret"
Expected = TypeVar("Expected", bound=Message)
HOME = "process-id"


class Store:
    """A store that can be watched: it is closed when the coordinator drops it."""


class Node:
    """One node's end of the connection."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    async def next(self) -> Message | None:
        """Return the next message that is not a heartbeat; None at the end of the connection."""
        while (message := await asyncio.wait_for(self.channel.receive(), DEADLINE_S)) is not None:
            if not isinstance(message, KeepAlive):
                return message
        assert not self.channel.timed_out, "the coordinator is silent and has not closed the connection"
        return None

    async def expect(self, kind: type[Expected]) -> Expected:
        message = await self.next()
        assert isinstance(message, kind), message
        return message

    async def outcome(self) -> RunOutcome:
        return (await self.expect(JobOutcome)).outcome


class Job:
    """A coordinator, its stores by round, and the nodes that connect to it."""

    def __init__(self, **config: Any) -> None:
        self.config = ElasticConfig(**{"min_nodes": 2, "max_nodes": 2, **config})
        self.stores: list[weakref.ref[Store]] = []
        self.store_error: Exception | None = None
        self.coordinator = Coordinator(self.config, TOKEN, HOME, self.open_store)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.nodes: list[Node] = []

    def open_store(self) -> tuple[int, object]:
        if self.store_error is not None:
            raise self.store_error
        store = Store()
        self.stores.append(weakref.ref(store))
        return 1000 + len(self.stores), store

    def open_rounds(self) -> list[int]:
        gc.collect()
        return [number for number, store in enumerate(self.stores, 1) if store() is not None]

    async def node(self, number: int, token: bytes = TOKEN, **greeting: Any) -> Node:
        plan = {"min_nodes": self.config.min_nodes, "max_nodes": self.config.max_nodes, "spares": self.config.spares}
        request = JoinRequest(**{"host": f"n{number}", "node_index": number, "process_id": "", **plan, **greeting})
        node = Node(await connect(["127.0.0.1"], self.port, token, RENDEZVOUS_PROTOCOL, request))
        self.nodes.append(node)
        return node

    async def running(self, *numbers: int) -> list[Node]:
        """Connect these nodes and start the next round on them."""
        nodes = [await self.node(number) for number in numbers]
        await self.run_round(nodes)
        return nodes

    async def run_round(self, nodes: list[Node]) -> None:
        for node in nodes:
            node.channel.send(RoundReady((await node.expect(RoundForms)).round))
        for node in nodes:
            await node.expect(RoundRuns)

    async def ended(self) -> RunOutcome:
        return await asyncio.wait_for(self.coordinator.ended(), DEADLINE_S)


@pytest.fixture
async def jobs() -> AsyncIterator[Any]:
    made: list[Job] = []

    async def start(**config: Any) -> Job:
        made.append(Job(**config))
        await made[-1].coordinator.start(made[-1].listener)
        return made[-1]

    yield start
    for job in made:
        for node in job.nodes:
            node.channel.close()
        await asyncio.wait_for(job.coordinator.close(DEADLINE_S), 2 * DEADLINE_S)


async def test_a_closed_round_sends_ranks_and_store_and_runs_when_all_are_ready(jobs: Any) -> None:
    job = await jobs()
    second, first = await job.node(1), await job.node(0)
    assert await first.expect(RoundForms) == RoundForms(round=1, rank=0, size=2, port=1001)
    assert await second.expect(RoundForms) == RoundForms(round=1, rank=1, size=2, port=1001)
    for node in (first, second):
        node.channel.send(RoundReady(1))
    assert await first.expect(RoundRuns) == RoundRuns(1) == await second.expect(RoundRuns)


async def test_every_node_gets_the_outcome_of_a_success(jobs: Any) -> None:
    job = await jobs()
    nodes = await job.running(0, 1)
    for node in nodes:
        node.channel.send(TorchrunEnded(0, ""))
    outcomes = [await node.outcome() for node in nodes]
    assert outcomes[0] == outcomes[1] and (outcomes[0].state, outcomes[0].exit_code) == ("succeeded", 0)
    assert (await job.ended()).exit_code == 0
    assert job.open_rounds() == [1]  # nodes may still be in its exit barrier


async def test_a_failure_ends_the_job_for_all_nodes_and_closes_the_stores(jobs: Any) -> None:
    job = await jobs()
    first, second = await job.running(0, 1)
    second.channel.send(TorchrunEnded(3, "the worker of rank 1 exited with 3"))
    for node in (first, second):
        outcome = await node.outcome()
        assert (outcome.exit_code, outcome.end_reason) == (3, "n1: the worker of rank 1 exited with 3")
    assert (await job.ended()).node == "n1" and job.open_rounds() == []


async def test_the_next_round_has_a_new_store_and_the_old_one_is_open_until_it_runs(jobs: Any) -> None:
    job = await jobs(spares=1, last_call=DEADLINE_S)
    first, second, spare = [await job.node(number) for number in range(3)]
    await job.run_round([first, second])
    second.channel.close()
    assert await first.expect(RoundRecalled) == RoundRecalled(1)
    first.channel.send(BackAtBarrier())
    form = await first.expect(RoundForms)
    assert (form.round, form.port) == (2, 1002) and (await spare.expect(RoundForms)).rank == 1
    assert job.open_rounds() == [1, 2]
    for node in (first, spare):
        node.channel.send(RoundReady(2))
    await first.expect(RoundRuns)
    assert job.open_rounds() == [2]


async def test_a_store_that_cannot_be_opened_ends_the_job_with_the_reason(jobs: Any) -> None:
    job = await jobs()
    job.store_error = OSError("no port")
    nodes = [await job.node(number) for number in range(2)]
    for node in nodes:
        assert (await node.outcome()).end_reason == "no store could be opened for round 1: no port"
    assert (await job.ended()).exit_code == 125


async def test_a_node_of_another_plan_is_refused_and_disconnected(jobs: Any) -> None:
    job = await jobs()
    node = await job.node(0, min_nodes=1, max_nodes=3)
    assert (await node.expect(JoinRefused)).reason == (
        "n0 was started with --nnodes 1:3 and 0 spares, this job with --nnodes 2:2 and 0 spares"
    )
    assert await node.next() is None


async def test_a_second_node_of_a_number_is_refused_and_the_first_one_stays(jobs: Any) -> None:
    job = await jobs()
    first = await job.node(0)
    twin = await job.node(0, host="twin")
    assert "n0 is that node" in (await twin.expect(JoinRefused)).reason
    await job.node(1)
    assert (await first.expect(RoundForms)).rank == 0


async def test_a_node_with_another_token_is_not_admitted(jobs: Any) -> None:
    job = await jobs(min_nodes=1, max_nodes=1)
    with pytest.raises(ChannelError):
        await job.node(0, token=b"guessed")
    assert (await (await job.node(0)).expect(RoundForms)).size == 1  # the first one did not count


async def test_a_node_that_violates_the_protocol_is_lost(jobs: Any) -> None:
    job = await jobs()
    first, second = await job.running(0, 1)
    second.channel.send_line(b'{"type": "round_ready"}\n')  # without its round
    assert await second.next() is None
    await first.expect(RoundRecalled)
    assert "round_ready: lacks the field round" in (await first.outcome()).end_reason


async def test_a_node_that_sends_an_unknown_message_is_lost(jobs: Any) -> None:
    job = await jobs()
    first, second = await job.running(0, 1)
    second.channel.send_line(b'{"type": "of a later version"}\n')
    assert await second.next() is None
    await first.expect(RoundRecalled)
    assert "unknown message type 'of a later version'" in (await first.outcome()).end_reason


async def test_a_spare_that_leaves_is_disconnected_and_the_job_goes_on(jobs: Any) -> None:
    job = await jobs(spares=1, last_call=DEADLINE_S)
    first, second, spare = [await job.node(number) for number in range(3)]
    await job.run_round([first, second])
    spare.channel.send(LeaveJob("was ended by SIGTERM"))
    assert await spare.next() is None
    for node in (first, second):
        node.channel.send(TorchrunEnded(0, ""))
    assert (await first.outcome()).exit_code == 0  # its next message: no recall came before


async def test_without_the_node_of_its_own_process_the_job_ends(jobs: Any) -> None:
    job = await jobs(spares=1, last_call=DEADLINE_S)
    home = await job.node(0, process_id=HOME)
    others = [await job.node(number) for number in (1, 2)]
    await job.run_round([home, others[0]])
    home.channel.close()
    reason = (await others[1].outcome()).end_reason
    assert reason == "n0 is gone: its connection ended; it ran the coordinator"


async def test_a_node_that_arrives_after_the_end_gets_the_outcome(jobs: Any) -> None:
    job = await jobs(gather_timeout=0.0)
    assert (await job.ended()).exit_code == 125
    assert "joined within 0 s" in (await (await job.node(0)).outcome()).end_reason


async def test_a_close_waits_for_the_nodes_to_disconnect(jobs: Any) -> None:
    job = await jobs(min_nodes=1, max_nodes=1)
    (node,) = await job.running(0)
    closing = asyncio.create_task(job.coordinator.close(10 * DEADLINE_S))
    node.channel.send(TorchrunEnded(0, ""))
    await node.outcome()
    assert not closing.done()
    node.channel.close()
    await asyncio.wait_for(closing, DEADLINE_S)


async def test_a_close_ends_after_its_time_and_closes_connections_and_port(jobs: Any) -> None:
    job = await jobs(min_nodes=1, max_nodes=1)
    (node,) = await job.running(0)
    await asyncio.wait_for(job.coordinator.close(0.01), DEADLINE_S)
    assert await node.next() is None
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", job.port), timeout=DEADLINE_S)


def settings(port: int, **config: Any) -> RendezvousSettings:
    plan = ElasticConfig(**{"min_nodes": 2, "max_nodes": 2, **config})
    return RendezvousSettings(
        "127.0.0.1", port, "run", plan, TOKEN, "here", None, is_host=None, read_timeout=DEADLINE_S
    )


def test_a_coordinator_outside_the_job_announces_its_port_and_does_not_miss_its_own_host() -> None:
    announced: list[int] = []
    outcome = coordinate(settings(0, gather_timeout=0.0, hosts=("here", "n1")), lambda: (1, None), announced.append)
    assert outcome.exit_code == 125 and outcome.end_reason.endswith("; missing: n1")
    assert len(announced) == 1 and announced[0] > 0


def test_a_second_coordinator_on_the_port_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} is in use on this host, perhaps by another coordinator"):
            coordinate(settings(port), lambda: (1, None), lambda port: None)
