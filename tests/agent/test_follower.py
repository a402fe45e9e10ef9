"""Agents that join late, or after the run has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.agent.conftest import DEADLINE_S, TOKEN, identity, serve_as_leader

from muster.agent.follower import Follower
from muster.process.lease import ProcessLease
from muster.rundir import write_json


def test_a_late_agent_finds_the_leader_despite_a_newer_claim_that_failed(tmp_path: Path) -> None:
    async def play() -> None:
        tasks: list[asyncio.Future[None]] = []
        first = await serve_as_leader(identity(tmp_path, 0), 0, tasks)
        retired = await serve_as_leader(identity(tmp_path, 1), 1, tasks)
        retired.close_all()
        late = Follower(identity(tmp_path, 2), TOKEN, ProcessLease())
        channel = await asyncio.wait_for(late._first_leader(), DEADLINE_S)
        assert channel is not None and late._following == 0
        channel.close()
        first.close_all()
        await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)

    asyncio.run(play())


@pytest.mark.parametrize("code", [0, 3])
def test_an_agent_without_a_message_about_the_end_exits_with_the_recorded_code(tmp_path: Path, code: int) -> None:
    agent = identity(tmp_path, 2)
    write_json(agent.attempt.outcome, {"exit_code": code, "state": "whatever"})
    assert asyncio.run(asyncio.wait_for(Follower(agent, TOKEN, ProcessLease()).run(), DEADLINE_S)) == code
