"""The driver's lifecycle at the borders of cycles: the state of one cycle does not reach the next."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.agent.leader.leader_doubles import LeaderParts, wait_until

from muster.agent.control.messages import GcsRestarted
from muster.agent.leader.driver import Driver
from muster.agent.leader.driver_supervisor import DriverSupervisor
from muster.agent.leader.gang import Gang
from muster.agent.leader.inbox import Failure, MachineEvent
from muster.agent.leader.services import LeaderServices
from muster.election.timing import FENCE_S
from muster.lifecycle import events as m
from muster.process import Exit
from muster.rundir import write_json


class Life:
    """The supervisor of a gang, with the events that it posts for the state machine."""

    def __init__(self, tmp_path: Path, **fields: Any) -> None:
        self.parts = LeaderParts(tmp_path, procs_per_node=2, **fields)
        self.machine = self.parts.machine
        self.heard = self.parts.sent
        self.supervisor = DriverSupervisor(self.parts.context, LeaderServices(self.parts.context))
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
    assert (life.parts.fed(), life.signals, life.supervisor._stall_reason) == ([], [], None)


async def test_a_stall_is_reported_when_the_stacks_are_written(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.heard.stacks.set_result([True])
    await asyncio.wait_for(life.supervisor._on_stall(60.0), 120)
    assert [type(event) for event in life.parts.fed()] == [m.DriverStalled] and life.signals == []


async def test_the_gang_after_a_lost_node_waits_until_that_is_fenced(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.supervisor.on_node_lost(1, last_heard=1000.0)
    life.supervisor.on_node_lost(2, last_heard=900.0)
    gang = life.supervisor._new_driver()
    assert isinstance(gang, Gang) and gang._fenced_at == 1000.0 + FENCE_S


async def test_the_scope_of_a_driver_that_never_ran_is_closed_when_the_next_cycle_begins(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path)
    supervisor = DriverSupervisor(parts.context, LeaderServices(parts.context))
    driver = supervisor.driver
    assert isinstance(driver, Driver)
    supervisor.begin_cycle(m.BeginCycle(1, "n1 is lost"))
    await wait_until(lambda: driver._opening.done() and driver._scope._closed.done())
    await supervisor.close()


@pytest.mark.parametrize(("code", "posted"), [(0, MachineEvent), (7, Failure)])
async def test_the_end_of_the_driver_is_posted_with_whether_it_ended_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, posted: type
) -> None:
    life = Life(tmp_path)
    life.parts.arrive()
    driver = life.supervisor.driver

    async def run(command: list[str], env: dict[str, str], cwd: str) -> Exit:
        assert (env["MUSTER_CYCLE"], env["A"]) == ("0", "b")
        driver.completed = True
        return Exit(code=code)

    write_json(life.parts.identity.run.env, {"A": "b"})
    monkeypatch.setattr(driver, "run", run)
    life.parts.publisher.record_changes([])
    await asyncio.wait_for(life.supervisor.run(0), 120)
    assert [type(event) for event in life.parts.posted] == [posted]
    assert life.parts.fed() == [m.DriverEnded(code, f"exited with {code}", 0, completed=True)]


async def test_a_failure_under_a_restart_policy_is_posted_when_all_nodes_have_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost node may be the cause: then its loss is posted first."""
    life = Life(tmp_path, on_node_loss="restart")
    life.parts.arrive()

    async def run(*args: object) -> Exit:
        return Exit(code=1)

    monkeypatch.setattr(life.supervisor.driver, "run", run)
    life.parts.publisher.record_changes([])
    running = asyncio.ensure_future(life.supervisor.run(0))
    await wait_until(lambda: life.parts.events("driver_end"))
    await asyncio.sleep(0.01)
    assert life.parts.fed() == []
    life.heard.all_answered.set()
    await asyncio.wait_for(running, 120)
    assert [type(event) for event in life.parts.fed()] == [m.DriverEnded]


async def test_the_address_of_the_head_is_published_unless_another_cycle_has_begun(tmp_path: Path) -> None:
    life = Life(tmp_path, large_from=64)
    life.supervisor.on_head_address("10.0.0.1:6379", 8265)
    await wait_until(lambda: life.parts.publisher.ray is not None)
    assert life.parts.publisher.ray is not None and life.parts.publisher.ray["address"] == "10.0.0.1:6379"
    life.supervisor.on_head_address("10.0.0.2:6379", None)
    life.supervisor.begin_cycle(m.BeginCycle(1, "n1 is lost"))
    await life.parts.context.files.finish()
    await asyncio.sleep(0)
    assert life.parts.publisher.ray is None


async def test_a_restart_of_ray_s_control_service_is_an_event_and_counted_in_the_status(tmp_path: Path) -> None:
    life = Life(tmp_path, large_from=64)
    life.supervisor.on_head_address("10.0.0.1:6379", None)
    await wait_until(lambda: life.parts.publisher.ray is not None)
    head = life.machine.nodes[0]
    life.supervisor.on_gcs_restarted(head, GcsRestarted(2, "Ray's gcs_server exited with 1", 0.41234, cycle=0))
    assert life.parts.publisher.ray is not None and life.parts.publisher.ray["gcs_restarts"] == 2
    (event,) = life.parts.events("gcs_restart")
    assert (event["host"], event["restarts"], event["seconds"]) == (head.host, 2, 0.412)
    assert event["reason"] == "Ray's gcs_server exited with 1"
    life.supervisor.begin_cycle(m.BeginCycle(1, "n1 is lost"))
    assert life.supervisor.cluster.gcs_restarts == 0


async def test_the_driver_has_the_times_that_nemo_rl_reads_unless_the_job_sets_them(tmp_path: Path) -> None:
    life = Life(tmp_path)
    timings = life.parts.publisher.timings
    timings["job_start"], timings["ray_ready"] = 1700000000.5, None
    assert "NRL_RAY_READY_EPOCH" not in await life.supervisor.environment({})
    timings["ray_ready"] = 1700000042.25
    env = await life.supervisor.environment({"NRL_JOB_START_EPOCH": "1"})
    assert (env["NRL_JOB_START_EPOCH"], env["NRL_RAY_READY_EPOCH"]) == ("1", "1700000042.250")
