"""The leader's connections: admission of agents, requests, and lost agents."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.agent.conftest import DEADLINE_S, TOKEN, identity, serve_as_leader

from muster.agent.control.channel import connect
from muster.agent.node import FollowResult


def test_a_second_connection_of_one_node_is_refused_not_dismissed(tmp_path: Path) -> None:
    async def play() -> None:
        tasks: list[asyncio.Future[None]] = []
        leader = await serve_as_leader(identity(tmp_path, 0), 0, tasks)
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


def test_a_request_is_answered_although_a_member_is_lost_meanwhile(tmp_path: Path) -> None:
    async def play() -> None:
        tasks: list[asyncio.Future[None]] = []
        leader = await serve_as_leader(identity(tmp_path, 0), 0, tasks)
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
