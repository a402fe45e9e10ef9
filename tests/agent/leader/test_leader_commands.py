"""The execution of the state machine's commands by the leader."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import get_args

import pytest
from tests.agent.leader.leader_doubles import LeaderParts, wait_until

from muster.agent.control.messages import StartRay, StopWork, Welcome
from muster.agent.leader.leader import _COMMAND_METHODS, Leader
from muster.lifecycle import events as m
from muster.lifecycle.state_machine import Transition


class Executing:
    """A leader of a gang, and the messages that it sends."""

    def __init__(self, tmp_path: Path) -> None:
        self.parts = LeaderParts(tmp_path, procs_per_node=1)
        self.sent = self.parts.sent
        self.leader = Leader(self.parts.context)
        self.supervisor = self.leader._driver_supervisor

    def execute(self, command: m.Command) -> None:
        self.leader._execute(Transition((command,)))


@pytest.fixture
async def executing(tmp_path: Path) -> Executing:
    return Executing(tmp_path)


def test_every_command_is_known() -> None:
    assert _COMMAND_METHODS.keys() == set(get_args(m.Command))


async def test_the_head_starts_on_an_address_that_others_have_reached(executing: Executing) -> None:
    executing.sent.peers = ["10.0.0.7", "10.0.0.7", "192.168.0.7"]
    executing.execute(m.StartHead(0, 0))
    await wait_until(lambda: executing.sent.sent)
    assert executing.sent.of(StartRay) == [(0, StartRay(0, "10.0.0.7", None, None))]


async def test_a_worker_gets_its_rank_and_the_address_of_the_head(executing: Executing) -> None:
    executing.supervisor.cluster.address = "10.0.0.7:6379"
    executing.execute(m.StartWorker(2, 1, 0))
    assert executing.sent.of(StartRay) == [(2, StartRay(1, None, "10.0.0.7:6379", None))]


async def test_a_replacement_gets_the_number_of_the_node_whose_rank_it_takes(executing: Executing) -> None:
    executing.supervisor.cluster.address = "10.0.0.7:6379"
    executing.execute(m.StartWorker(3, 1, 0, replaces=2))
    assert executing.sent.of(StartRay) == [(3, StartRay(1, None, "10.0.0.7:6379", 2))]


async def test_a_node_that_rejoins_is_welcomed_to_the_cycle(executing: Executing) -> None:
    executing.execute(m.Rejoin(2, 5))
    assert executing.sent.of(Welcome) == [(2, Welcome(5, False, None, False, None))]


async def test_a_node_has_as_much_time_for_its_logs_as_slurm_leaves(executing: Executing) -> None:
    outcome = m.RunOutcome("failed", 1, "the driver exited with 1")
    now = time.monotonic()
    executing.leader._killed_at = now + 10.0
    executing.execute(m.StopNode(1, 0, outcome, now + 1000.0))
    executing.execute(m.StopNode(2, 0, None, None))
    (_, ending), (_, continuing) = executing.sent.of(StopWork)
    assert ending.logs is not None and 0 < ending.logs.seconds < 10.0
    assert continuing.logs is not None and continuing.logs.failed


async def test_the_driver_starts_when_the_lease_allows_the_cycle(
    executing: Executing, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed, ran = asyncio.Event(), []

    async def wait_for_quorum(cycle: int) -> None:
        await allowed.wait()

    async def run(cycle: int) -> None:
        ran.append(cycle)

    monkeypatch.setattr(executing.parts.context.lease, "wait_for_quorum", wait_for_quorum)
    monkeypatch.setattr(executing.supervisor, "run", run)
    executing.execute(m.StartDriver(4))
    await asyncio.sleep(0.01)
    assert ran == []
    allowed.set()
    await wait_until(lambda: ran == [4])


async def test_a_new_cycle_has_a_new_driver_and_a_new_cluster(executing: Executing) -> None:
    driver, cluster = executing.supervisor.driver, executing.supervisor.cluster
    executing.execute(m.BeginCycle(1, "n1 is lost"))
    assert executing.supervisor.driver is not driver and executing.supervisor.cluster is not cluster
    assert "cycle 1 begins: n1 is lost" in executing.parts.phases()
