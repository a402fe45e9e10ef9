"""An agent that comes when a lead is there already, or when it has been here before."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.agent.conftest import DEADLINE_S, TOKEN

from muster.agent.channel import connect
from muster.agent.heir import Heir
from muster.agent.job import Identity
from muster.agent.members import Members
from muster.agent.node import Parting
from muster.board import RunPaths, claim
from muster.process.lease import Lease


def identity(directory: Path, rank: int) -> Identity:
    run = RunPaths(str(directory))
    attempt = run.attempt(0)
    os.makedirs(os.path.dirname(attempt.node_record(rank)), exist_ok=True)
    return Identity(rank, f"n{rank}", run, attempt, local=True)


async def leading(who: Identity, term: int, tasks: list[asyncio.Future[None]]) -> Members:
    members = Members(who, TOKEN)
    members.on_task = lambda work: tasks.append(asyncio.ensure_future(work))
    record = {"term": term, "rank": who.rank, "addresses": ["127.0.0.1"], "port": await members.listen()}
    assert claim(who.attempt.lead(term), record)
    return members


def test_who_comes_late_finds_the_lead_behind_a_newer_claim_that_came_to_nothing(tmp_path: Path) -> None:
    async def play() -> None:
        tasks: list[asyncio.Future[None]] = []
        first = await leading(identity(tmp_path, 0), 0, tasks)
        retired = await leading(identity(tmp_path, 1), 1, tasks)
        retired.abandon()
        late = Heir(identity(tmp_path, 2), TOKEN, Lease())
        channel = await asyncio.wait_for(late._first_lead(), DEADLINE_S)
        assert channel is not None and late._following == 0
        channel.close()
        first.abandon()
        await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)

    asyncio.run(play())


def test_a_second_connection_of_one_node_is_let_go_and_not_told_that_the_run_is_over(tmp_path: Path) -> None:
    async def play() -> None:
        tasks: list[asyncio.Future[None]] = []
        lead = await leading(identity(tmp_path, 0), 0, tasks)
        port = lead._server.sockets[0].getsockname()[1]
        greeting = {"rank": 1, "host": "n1", "attempt": 0}
        there = await connect(["127.0.0.1"], port, TOKEN, greeting)
        again = await connect(["127.0.0.1"], port, TOKEN, greeting)
        told = await asyncio.wait_for(again.receive(), DEADLINE_S)
        assert told is not None and Parting(told["type"]) is Parting.RELEASED
        there.close()
        lead.abandon()
        await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)

    asyncio.run(play())
