"""The leader's handling of nodes' reports on services: variables, records, events, and members of sandboxes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.agent.control.channel import connect
from muster.agent.control.connections import Connections
from muster.agent.job import Identity
from muster.agent.leader import services
from muster.agent.leader.log_tail import LogTails
from muster.agent.leader.services import LeaderServices
from muster.agent.leader.status_publisher import StatusPublisher
from muster.agent.services.discovery import published_variables
from muster.lifecycle import events as m
from muster.lifecycle.services import ServicePlan
from muster.lifecycle.state_machine import RunConfig, RunStateMachine
from muster.rundir import RunPaths
from muster.sandbox.gateway.peers import MEMBERS_MAX

HOSTS = ["n0", "n1", "n2"]


class SentMessages:
    """Replaces the connections and records messages."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str, dict[str, Any]]] = []
        self.answer: asyncio.Event = asyncio.Event()

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        self.sent.append((rank, kind, fields))

    async def send_each(self, ranks: Sequence[int], kind: str, **fields: Any) -> None:
        for rank in ranks:
            self.send(rank, kind, **fields)

    async def wait_for_all_answers(self) -> None:
        await self.answer.wait()

    def of(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        return [(rank, fields) for rank, sent, fields in self.sent if sent == kind]


class Led:
    """A run without Ray whose leader gets reports from the test."""

    def __init__(self, tmp_path: Path, *services: ServicePlan, **plan: Any) -> None:
        self.run = RunPaths(str(tmp_path / "run-20260101T000000-ab12"))
        Path(self.run.attempt(0).root).mkdir(parents=True)
        self.identity = Identity(rank=0, host="n0", run=self.run, attempt=self.run.attempt(0), local=False)
        self.protocol = RunStateMachine(RunConfig(HOSTS, ray=False, services=services, **plan), 0.0)
        self.publisher, self.tasks = StatusPublisher(self.identity, self.protocol), set[Any]()
        self.members = SentMessages()
        self.is_leader = True
        self.services = LeaderServices(
            self.identity,
            self.protocol,
            self.publisher,
            self.members,  # type: ignore[arg-type]
            self._off_loop,
            self.tasks.add,
            self.feed,
            LogTails(),
            lambda: self.is_leader,
        )
        for rank, host in enumerate(HOSTS):
            self.feed(m.Arrived(rank, host))

    async def _off_loop(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    def feed(self, event: m.Event) -> None:
        for command in self.protocol.handle(event, 0.0):
            if isinstance(command, m.StartServices):
                self.services.start(command)
        self.services.handle_changes()

    def report(self, rank: int, state: str, name: str = "web", cycle: int = 0, **more: Any) -> None:
        fields = {"words": "", "url": f"http://n{rank}:80", "between": None, "restarts": 0, **more}
        self.services.on_message(rank, {"type": "service", "service": name, "state": state, "cycle": cycle, **fields})

    def record(self, name: str = "web") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.identity.attempt.service_record(name)).read_text())
        return found


async def test_every_node_finds_the_nearest_endpoint_and_all_that_are_ready(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web", 2))
    assert [rank for rank, _ in led.members.of("start_services")] == [1, 2]
    for rank in (2, 1):
        led.report(rank, "ready")
    found = {
        "MUSTER_SERVICES_DIR": led.identity.attempt.services_dir,
        "MUSTER_SERVICE_WEB_URLS": "http://n1:80,http://n2:80",
    }
    assert led.services.environment(0) == {**found, "MUSTER_SERVICE_WEB": "http://n1:80"}
    assert led.services.environment(2) == {**found, "MUSTER_SERVICE_WEB": "http://n2:80"}


async def test_an_instance_that_is_not_ready_is_not_found(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web", gate=False))
    led.report(0, "ready")
    led.report(1, "starting", words="connection refused")
    assert led.services.environment(1)["MUSTER_SERVICE_WEB"] == "http://n0:80"
    assert [one["state"] for one in led.services.snapshot()["web"]["instances"]] == ["ready", "starting", "starting"]


async def test_the_status_has_the_load_of_each_sandbox_until_the_instance_restarts(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("box"))
    led.report(1, "ready", "box")
    message = {"type": "service_load", "service": "box", "cycle": 0, "load": {"slots": 4, "running": 3}}
    led.services.on_message(1, message)
    led.services.on_message(2, {**message, "cycle": 7})  # of another cycle: ignored
    instances = led.services.snapshot()["box"]["instances"]
    assert [one.get("load") for one in instances] == [None, {"slots": 4, "running": 3}, None]
    led.services.start(m.StartServices(1, ["box"]))
    assert "load" not in led.services.snapshot()["box"]["instances"][1]


async def test_a_node_finds_its_own_sandbox_and_sandboxes_find_each_other(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("box"))
    for rank in range(3):
        assert led.members.of("service_members") == []
        led.report(rank, "ready", "box", url="http://127.0.0.1:6000", between=f"http://n{rank}:7000")
        await led.services.publish()
    env = led.services.environment(0)
    assert env["MUSTER_SERVICE_BOX"] == env["MUSTER_SERVICE_BOX_URLS"] == "http://127.0.0.1:6000"
    sent = led.members.of("service_members")
    assert [rank for rank, _ in sent] == [0, 1, 2]
    assert sent[0][1]["endpoints"] == ["http://n0:7000", "http://n1:7000", "http://n2:7000"]
    led.report(1, "restarting", "box", between="http://n1:7000", restarts=1)
    await led.services.publish()
    later = led.members.of("service_members")[3:]
    assert later[0][1]["endpoints"] == ["http://n0:7000", "http://n2:7000"]
    assert later[0][1]["version"] > sent[0][1]["version"]


async def test_the_driver_waits_for_endpoints_that_do_not_serve_all_sandboxes_and_names_them_when_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    led = Led(tmp_path, ServicePlan("box"))
    for rank in range(3):
        led.report(rank, "ready", "box", between=f"http://n{rank}:7000")
    await led.services.publish()
    (version,) = {fields["version"] for _, fields in led.members.of("service_members")}
    waiting = asyncio.ensure_future(led.services.wait_until_served())
    for rank, served in ((0, version), (1, version), (2, version - 1)):
        led.services.on_message(rank, {"type": "service_serves", "service": "box", "cycle": 0, "version": served})
    await asyncio.sleep(0)
    assert not waiting.done()
    led.services.on_message(2, {"type": "service_serves", "service": "box", "cycle": 0, "version": version})
    await asyncio.wait_for(waiting, 30)
    led.report(1, "restarting", "box", between="http://n1:7000", restarts=1)
    await led.services.publish()
    monkeypatch.setattr(services, "SERVE_TIMEOUT_S", 0.01)
    await led.services.wait_until_served()
    assert "the sandboxes on n0, n2 do not serve all the others yet" in caplog.text


async def test_a_list_of_10_000_sandboxes_reaches_every_agent_in_one_line(tmp_path: Path) -> None:
    """Real connections: the longest list that may be, of IPv6 addresses, and two agents that read it."""
    identity = Identity(1, "n1", RunPaths(str(tmp_path)), RunPaths(str(tmp_path)).attempt(0), local=True)
    members, joined = Connections(identity, b"secret"), asyncio.Queue[int]()
    members.on_join = lambda rank, greeting, spoken: joined.put_nowait(rank)
    tasks = set[asyncio.Task[None]]()
    members.on_task = lambda work: tasks.add(asyncio.ensure_future(work))
    port = await members.listen()
    greeting = {"attempt": 0, "host": "n"}
    agents = [await connect(["127.0.0.1"], port, b"secret", {**greeting, "rank": rank}) for rank in (2, 3)]
    for _ in agents:
        await asyncio.wait_for(joined.get(), 30)
    endpoints = [f"http://[ffff:ffff:ffff:ffff:ffff:ffff:ffff:{number:04x}]:65535" for number in range(MEMBERS_MAX)]
    sending = asyncio.ensure_future(members.send_each([2, 3], "service_members", service="box", endpoints=endpoints))
    for agent in agents:
        message = await asyncio.wait_for(agent.receive(), 60)
        assert message is not None and message["endpoints"] == endpoints
    await sending
    for agent in agents:
        agent.close()
    members.close_all()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_in_a_new_cycle_members_are_sent_again_though_none_changed(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("box"), restart_on_driver_failure=True, on_node_loss="restart", max_restarts=1)
    for cycle in range(2):
        for rank in range(3):
            led.report(rank, "ready", "box", cycle, between=f"http://n{rank}:7000")
        await led.services.publish()
        assert len(led.members.of("service_members")) == 3 * (cycle + 1)
        led.feed(m.DriverEnded(1, "exited with 1", cycle))
        for rank in range(3):
            led.feed(m.NodeGone(rank, cycle + 1))


async def test_the_record_follows_a_loss_and_a_new_cycle(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web"), spares=1, on_node_loss="restart", max_restarts=1)
    for rank in range(2):
        led.report(rank, "ready")
    await led.services.publish()
    record = led.record()
    assert (record["attempt"], record["cycle"], record["wanted"], record["ready"]) == (0, 0, 2, 2)
    assert published_variables(led.identity.attempt, 1, 0)["MUSTER_SERVICE_WEB"] == "http://n1:80"
    led.feed(m.NodeLost(1, "lost"))
    led.feed(m.DriverEnded(143, "was ended", 0))
    await led.services.publish()
    assert (led.record()["cycle"], led.record()["instances"], led.record()["urls"]) == (1, [], [])
    led.report(0, "ready", cycle=0)
    assert led.services.environment(0) == {"MUSTER_SERVICES_DIR": led.identity.attempt.services_dir}


async def test_a_record_of_another_cycle_or_attempt_is_not_read(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web"))
    led.report(0, "ready")
    await led.services.publish()
    assert "MUSTER_SERVICE_WEB" in published_variables(led.identity.attempt, 0, 0)
    assert "MUSTER_SERVICE_WEB" not in published_variables(led.identity.attempt, 0, 1)
    later = led.run.attempt(1)
    Path(later.services_dir).mkdir(parents=True)
    Path(later.service_record("web")).write_text(json.dumps(led.record()))
    assert "MUSTER_SERVICE_WEB" not in published_variables(later, 0, 0)
    assert published_variables(led.run.attempt(2), 0, 0) == {}


async def test_a_node_that_leads_no_more_writes_nothing(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web"))
    led.report(0, "ready")
    led.is_leader = False
    await led.services.publish()
    assert not Path(led.identity.attempt.services_dir).exists()


async def test_a_failure_is_the_run_s_error_with_the_last_lines_of_the_service_s_log(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web"))
    log = Path(led.identity.attempt.service_log("web", "n1", 0))
    log.parent.mkdir(parents=True)
    log.write_text("no such model\n")
    led.report(1, "failed", words="exited with 1 before it was ready")
    error = led.publisher.error
    assert error is not None
    assert (error["host"], error["phase"], error["log_tail"]) == ("n1", "service", ["no such model"])
    assert error["reason"] == "service web on n1 exited with 1 before it was ready"


async def test_a_failure_under_the_driver_waits_until_all_nodes_have_answered(tmp_path: Path) -> None:
    """The failure may be the consequence of a lost node."""
    led = Led(tmp_path, ServicePlan("web"), spares=1, on_node_loss="restart", max_restarts=1)
    for rank in range(2):
        led.report(rank, "ready")
    led.report(0, "failed", words="exited with 1")
    assert led.protocol.outcome is None
    led.feed(m.NodeLost(1, "fell silent"))
    led.members.answer.set()
    await asyncio.gather(*led.tasks)
    assert led.protocol.outcome is None and led.protocol.restart_reason == "fell silent"


@pytest.mark.parametrize("name", ["other", "web"])
async def test_reports_of_another_cycle_or_service_are_ignored(tmp_path: Path, name: str) -> None:
    led = Led(tmp_path, ServicePlan("web"))
    led.report(0, "failed", name, cycle=0 if name == "other" else 1)
    assert led.protocol.outcome is None
