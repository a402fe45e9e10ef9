"""The driver's lifecycle at the borders of cycles: the state of one cycle does not reach the next."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.agent.leader.gang_doubles import JOB, SentMessages

from muster.agent.job import Identity
from muster.agent.leader.driver_supervisor import DriverSupervisor, LeaderContext
from muster.agent.leader.log_tail import LogTails
from muster.lifecycle import events as m
from muster.rundir import RunPaths


class Life:
    """The supervisor of a gang, with the events that it feeds to the state machine."""

    def __init__(self, tmp_path: Path) -> None:
        run = RunPaths(str(tmp_path / "run-20260101T000000-ab12"))
        identity = Identity(rank=0, host="n0", run=run, attempt=run.attempt(0), local=True)
        self.machine = SimpleNamespace(cycle=0, nodes=[], leader=0)
        self.fed: list[m.Event] = []
        self.heard = SentMessages()
        quiet = SimpleNamespace(phase=lambda text: None, event=lambda name, **fields: None, guests=[])
        parts: Any = (identity, JOB, self.machine, quiet, self.heard, LogTails())
        self.supervisor = DriverSupervisor(LeaderContext(*parts, None, None, None, self.fed.append, None, None))  # type: ignore[arg-type]
        self.signals: list[int] = []
        self.supervisor.driver.signal = self.signals.append  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["its cycle is over", "it has left"])
async def test_a_stall_is_ignored_if_the_driver_ended_while_the_stacks_were_written(tmp_path: Path, how: str) -> None:
    life = Life(tmp_path)
    stalled = asyncio.ensure_future(life.supervisor._on_stall(60.0))
    await asyncio.sleep(0)
    if how == "its cycle is over":
        life.machine.cycle = 1
    else:
        life.supervisor._driver_ended.set()
    life.heard.stacks.set_result([False])
    await asyncio.wait_for(stalled, 120)
    assert (life.fed, life.signals, life.supervisor._stall_reason) == ([], [], None)


async def test_a_stall_is_reported_when_the_stacks_are_written(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.heard.stacks.set_result([True])
    await asyncio.wait_for(life.supervisor._on_stall(60.0), 120)
    assert [type(event) for event in life.fed] == [m.DriverStalled] and life.signals == []


async def test_the_gang_after_a_lost_node_waits_until_that_is_fenced(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.supervisor.on_node_lost(1, last_heard=1000.0)
    life.supervisor.on_node_lost(2, last_heard=900.0)
    assert life.supervisor._new_driver()._fenced_at() == 1012.0  # type: ignore[union-attr]
