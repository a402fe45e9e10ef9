"""An agent that comes when a leader is there already, or when it has been here before."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from tests.agent.conftest import DEADLINE_S, TOKEN

from muster.agent.control.channel import connect
from muster.agent.control.connections import Connections
from muster.agent.follower import Follower
from muster.agent.job import Identity, Job
from muster.agent.node import FollowResult
from muster.process.lease import ProcessLease
from muster.rundir import RunPaths, create_exclusive, write_json


def identity(directory: Path, rank: int) -> Identity:
    run = RunPaths(str(directory))
    attempt = run.attempt(0)
    os.makedirs(os.path.dirname(attempt.node_record(rank)), exist_ok=True)
    write_json(run.job, {**dict.fromkeys(Job.__dataclass_fields__), "groups": [], "gather_timeout": 60.0, "segment": 1})
    return Identity(rank, f"n{rank}", run, attempt, local=True)


async def leading(who: Identity, term: int, tasks: list[asyncio.Future[None]]) -> Connections:
    members = Connections(who, TOKEN)
    members.on_task = lambda work: tasks.append(asyncio.ensure_future(work))
    record = {"term": term, "rank": who.rank, "addresses": ["127.0.0.1"], "port": await members.listen()}
    assert create_exclusive(who.attempt.leader(term), record)
    return members


def test_who_comes_late_finds_the_leader_behind_a_newer_claim_that_came_to_nothing(tmp_path: Path) -> None:
    async def play() -> None:
        tasks: list[asyncio.Future[None]] = []
        first = await leading(identity(tmp_path, 0), 0, tasks)
        retired = await leading(identity(tmp_path, 1), 1, tasks)
        retired.close_all()
        late = Follower(identity(tmp_path, 2), TOKEN, ProcessLease())
        channel = await asyncio.wait_for(late._first_leader(), DEADLINE_S)
        assert channel is not None and late._following == 0
        channel.close()
        first.close_all()
        await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)

    asyncio.run(play())


def test_a_second_connection_of_one_node_is_refused_and_not_told_that_the_run_is_over(tmp_path: Path) -> None:
    async def play() -> None:
        tasks: list[asyncio.Future[None]] = []
        leader = await leading(identity(tmp_path, 0), 0, tasks)
        port = leader._server.sockets[0].getsockname()[1]
        greeting = {"rank": 1, "host": "n1", "attempt": 0}
        there = await connect(["127.0.0.1"], port, TOKEN, greeting)
        again = await connect(["127.0.0.1"], port, TOKEN, greeting)
        told = await asyncio.wait_for(again.receive(), DEADLINE_S)
        assert told is not None and FollowResult(told["type"]) is FollowResult.REFUSED
        there.close()
        leader.close_all()
        await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)

    asyncio.run(play())


@pytest.mark.parametrize("code", [0, 3])
def test_who_never_heard_how_the_run_ended_leaves_with_the_recorded_code(tmp_path: Path, code: int) -> None:
    who = identity(tmp_path, 2)
    write_json(who.attempt.outcome, {"exit_code": code, "state": "whatever"})
    assert asyncio.run(asyncio.wait_for(Follower(who, TOKEN, ProcessLease()).run(), DEADLINE_S)) == code


def test_who_asked_is_answered_although_a_member_is_lost_meanwhile(tmp_path: Path) -> None:
    async def play() -> None:
        tasks: list[asyncio.Future[None]] = []
        leader = await leading(identity(tmp_path, 0), 0, tasks)
        port = leader._server.sockets[0].getsockname()[1]
        joined, lost = asyncio.Event(), asyncio.Event()
        leader.on_join = lambda *_: joined.set()
        leader.on_loss = lambda *_: lost.set()
        member = await connect(["127.0.0.1"], port, TOKEN, {"rank": 1, "host": "n1", "attempt": 0})
        await asyncio.wait_for(joined.wait(), DEADLINE_S)
        asking = asyncio.ensure_future(leader.ask("stacks", 1000.0))
        await asyncio.sleep(0)
        member.close()
        assert await asyncio.wait_for(asking, DEADLINE_S) == [None]
        await asyncio.wait_for(lost.wait(), DEADLINE_S)
        assert leader.last_heard(1) <= time.monotonic()
        leader.close_all()
        await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)

    asyncio.run(play())
