"""The leader's handling of nodes' reports on services: variables, records, events, and members of sandboxes."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import next_event
from tests.agent.leader.leader_doubles import HOSTS, LeaderParts, wait_until

from muster.agent.control.channel import connect
from muster.agent.control.connections import AgentJoined, Connections
from muster.agent.control.messages import (
    CONTROL_PROTOCOL,
    Greeting,
    ServiceLoad,
    ServiceMembers,
    ServiceServes,
    ServiceStatus,
    StartInstances,
)
from muster.agent.job import Identity
from muster.agent.leader import services
from muster.agent.leader.inbox import Inbox, MachineEvent
from muster.agent.leader.services import LeaderServices
from muster.agent.services.discovery import URLS_VARIABLE_MAX_BYTES, published_variables
from muster.agent.services.members import NO_MEMBERS, MemberList
from muster.lifecycle import events as m
from muster.lifecycle.services import ServicePlan, ServiceState
from muster.lifecycle.state_machine import RunConfig
from muster.lifecycle.topology import UNKNOWN_LOCATION
from muster.rundir import RunPaths
from muster.sandbox.gateway.peers import MEMBERS_MAX


class Led:
    """A run without Ray whose leader gets reports from the test."""

    def __init__(self, tmp_path: Path, *services: ServicePlan, **plan: Any) -> None:
        self.parts = LeaderParts(tmp_path, RunConfig(HOSTS, ray=False, services=services, **plan))
        self.run, self.identity = self.parts.identity.run, self.parts.identity
        self.protocol, self.publisher, self.members = self.parts.machine, self.parts.publisher, self.parts.sent
        self.services = LeaderServices(self.parts.context)
        for node_index, host in enumerate(HOSTS):
            self.feed(m.Arrived(node_index, host))

    def feed(self, event: m.Event) -> None:
        transition = self.protocol.handle(event, 0.0)
        for command in transition.commands:
            if isinstance(command, m.StartServices):
                self.services.start(command)
        self.publisher.record_changes(transition.changes)
        self.services.handle_changes(transition)

    def feed_posted(self) -> None:
        """Feed what was posted for the state machine."""
        posted, self.parts.inbox._events = list(self.parts.inbox._events), deque()
        for event in posted:
            assert isinstance(event, MachineEvent)
            self.feed(event.event)

    def report(self, node_index: int, state: str, name: str = "web", cycle: int = 0, **more: Any) -> None:
        fields = {"detail": "", "url": f"http://n{node_index}:80", "peer_url": None, "restarts": 0, **more}
        self.services.on_message(node_index, ServiceStatus(name, ServiceState(state), cycle=cycle, **fields))
        self.feed_posted()

    def record(self, name: str = "web") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.identity.attempt.service_record(name)).read_text())
        return found


async def test_every_node_finds_the_nearest_endpoint_and_all_that_are_ready(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web", 2))
    assert [node_index for node_index, _ in led.members.of(StartInstances)] == [1, 2]
    for node_index in (2, 1):
        led.report(node_index, "ready")
    found = {
        "MUSTER_SERVICES_DIR": led.identity.attempt.services_dir,
        "MUSTER_SERVICE_WEB_URLS": "http://n1:80,http://n2:80",
    }
    assert led.services.environment(0) == {**found, "MUSTER_SERVICE_WEB": "http://n1:80"}
    assert led.services.environment(2) == {**found, "MUSTER_SERVICE_WEB": "http://n2:80"}


async def test_the_record_is_built_once_for_all_nodes_of_a_gang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, built = Led(tmp_path, ServicePlan("web")), list[str]()
    build = LeaderServices._build_record
    monkeypatch.setattr(
        LeaderServices, "_build_record", lambda self, name, key: (built.append(name), build(self, name, key))[1]
    )
    for node_index in range(3):
        led.report(node_index, "ready")
    for node_index in range(3):
        assert led.services.environment(node_index)["MUSTER_SERVICE_WEB"] == f"http://n{node_index}:80"
    led.services.snapshot()
    await led.services.publish()
    assert built == ["web"]
    led.report(1, "restarting", restarts=1)
    assert led.services.environment(1)["MUSTER_SERVICE_WEB"] == "http://n0:80"
    assert built == ["web", "web"]


async def test_endpoints_that_are_too_many_for_a_variable_are_in_a_file(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web"))
    for node_index in range(3):
        led.report(node_index, "ready", url=f"http://{'h' * (URLS_VARIABLE_MAX_BYTES // 3)}{node_index}:80")
    await led.services.publish()
    env = led.services.environment(1)
    assert "MUSTER_SERVICE_WEB_URLS" not in env and env["MUSTER_SERVICE_WEB"].endswith("h1:80")
    urls = Path(env["MUSTER_SERVICE_WEB_URLS_FILE"]).read_text().splitlines()
    assert urls == led.record()["urls"] and len(urls) == 3
    assert published_variables(led.identity.attempt, 1, 0) == env


async def test_an_instance_that_is_not_ready_is_not_found(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web", gate=False))
    led.report(0, "ready")
    led.report(1, "starting", detail="connection refused")
    assert led.services.environment(1)["MUSTER_SERVICE_WEB"] == "http://n0:80"
    assert [one["state"] for one in led.services.snapshot()["web"]["instances"]] == ["ready", "starting", "starting"]


async def test_the_status_has_the_load_of_each_sandbox_until_the_instance_restarts(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("box"))
    led.report(1, "ready", "box")
    load = {"slots": 4, "running": 3}
    led.services.on_message(1, ServiceLoad("box", load, cycle=0))
    led.services.on_message(2, ServiceLoad("box", load, cycle=7))  # of another cycle: ignored
    instances = led.services.snapshot()["box"]["instances"]
    assert [one.get("load") for one in instances] == [None, {"slots": 4, "running": 3}, None]
    led.services.start(m.StartServices(1, ("box",), 0))
    assert "load" not in led.services.snapshot()["box"]["instances"][1]


async def test_a_node_finds_its_own_sandbox_and_sandboxes_find_each_other(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("box"))
    for node_index in range(3):
        assert led.members.of(ServiceMembers) == []
        led.report(node_index, "ready", "box", url="http://127.0.0.1:6000", peer_url=f"http://n{node_index}:7000")
        await led.services.publish()
    env = led.services.environment(0)
    assert env["MUSTER_SERVICE_BOX"] == env["MUSTER_SERVICE_BOX_URLS"] == "http://127.0.0.1:6000"
    sent = led.members.of(ServiceMembers)
    assert [node_index for node_index, _ in sent] == [0, 1, 2]
    assert (sent[0][1].base, sent[0][1].added) == (None, ("http://n0:7000", "http://n1:7000", "http://n2:7000"))
    led.report(1, "restarting", "box", peer_url="http://n1:7000", restarts=1)
    await led.services.publish()
    later = led.members.of(ServiceMembers)[3:]
    assert [node_index for node_index, _ in later] == [0, 1, 2]
    assert (later[0][1].base, later[0][1].added) == (sent[0][1].version, ())
    assert later[0][1].removed == ("http://n1:7000",)
    assert later[0][1].version > sent[0][1].version


async def test_the_driver_waits_for_endpoints_that_do_not_serve_all_sandboxes_and_names_them_when_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    led = Led(tmp_path, ServicePlan("box"))
    for node_index in range(3):
        led.report(node_index, "ready", "box", peer_url=f"http://n{node_index}:7000")
    await led.services.publish()
    (version,) = {message.version for _, message in led.members.of(ServiceMembers)}
    waiting = asyncio.ensure_future(led.services.wait_until_served())
    for node_index, served in ((0, version), (1, version), (2, version - 1)):
        led.services.on_message(node_index, ServiceServes("box", served, cycle=0))
    await asyncio.sleep(0)
    assert not waiting.done()
    led.services.on_message(2, ServiceServes("box", version, cycle=0))
    await asyncio.wait_for(waiting, 120)
    led.report(1, "restarting", "box", peer_url="http://n1:7000", restarts=1)
    await led.services.publish()
    monkeypatch.setattr(services, "SERVE_TIMEOUT_S", 0.01)
    await led.services.wait_until_served()
    assert "the sandboxes on n0, n2 do not serve all the others yet" in caplog.text


async def test_a_node_without_the_list_that_was_changed_gets_the_complete_one(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("box"))
    for node_index in range(3):
        led.report(node_index, "ready", "box", peer_url=f"http://n{node_index}:7000")
    await led.services.publish()
    led.members.sent.clear()
    led.services.on_message(1, ServiceServes("box", NO_MEMBERS, cycle=0))
    ((node_index, message),) = led.members.of(ServiceMembers)
    assert (node_index, message.base, len(message.added)) == (1, None, 3)


async def test_only_an_instance_on_a_new_node_gets_the_complete_list(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("box"), spares=1, on_node_loss="replace", max_restarts=1)
    for node_index in range(2):
        led.report(node_index, "ready", "box", peer_url=f"http://n{node_index}:7000")
    await led.services.publish()
    led.members.sent.clear()
    led.feed(m.NodeLost(1, "lost"))
    led.report(2, "ready", "box", peer_url="http://n2:7000", cycle=led.protocol.cycle)
    await led.services.publish()
    assert {node_index: message.base is None for node_index, message in led.members.of(ServiceMembers)}[2]


async def test_a_list_of_10_000_sandboxes_reaches_every_agent_in_one_line(tmp_path: Path) -> None:
    """Real connections: the longest list that may be, of IPv6 addresses, and two agents that read it."""
    identity = Identity(1, "n1", RunPaths(str(tmp_path)), RunPaths(str(tmp_path)).attempt(0), local=True)
    inbox = Inbox()
    members = Connections(identity, b"secret", inbox)
    port = await members.listen()
    greetings = [Greeting(node_index, "n", 0, UNKNOWN_LOCATION, None, False) for node_index in (2, 3)]
    agents = [await connect(["127.0.0.1"], port, b"secret", CONTROL_PROTOCOL, greeting) for greeting in greetings]
    for _ in agents:
        await next_event(inbox, AgentJoined)
    last = "http://[ffff:ffff:ffff:ffff:ffff:ffff:ffff:{:04x}]:65535"
    longest = MemberList(1, frozenset(last.format(number) for number in range(MEMBERS_MAX))).complete("box", 0)
    sending = asyncio.ensure_future(members.send_each([2, 3], longest))
    for agent in agents:
        assert await asyncio.wait_for(agent.receive(), 60) == longest
    await sending
    for agent in agents:
        agent.close()
    members.close_all()


async def test_in_a_new_cycle_members_are_sent_again_though_none_changed(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("box"), restart_on_driver_failure=True, on_node_loss="restart", max_restarts=1)
    for cycle in range(2):
        for node_index in range(3):
            led.report(node_index, "ready", "box", cycle, peer_url=f"http://n{node_index}:7000")
        await led.services.publish()
        assert len(led.members.of(ServiceMembers)) == 3 * (cycle + 1)
        led.feed(m.DriverEnded(1, "exited with 1", cycle))
        for node_index in range(3):
            led.feed(m.NodeGone(node_index, cycle + 1))


async def test_the_record_follows_a_loss_and_a_new_cycle(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web"), spares=1, on_node_loss="restart", max_restarts=1)
    for node_index in range(2):
        led.report(node_index, "ready")
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
    led.parts.context.lease.resign()
    await led.services.publish()
    assert not Path(led.identity.attempt.services_dir).exists()


async def test_a_failure_is_the_run_s_error_with_the_last_lines_of_the_service_s_log(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("web"))
    log = Path(led.identity.attempt.service_log("web", "n1", 0))
    log.parent.mkdir(parents=True)
    log.write_text("no such model\n")
    led.report(1, "failed", detail="exited with 1 before it was ready")
    await led.parts.context.error.settle()
    error = led.publisher.error
    assert error is not None
    assert (error["host"], error["phase"], error["log_tail"]) == ("n1", "service", ["no such model"])
    assert error["reason"] == "service web on n1 exited with 1 before it was ready"


async def test_a_failure_under_the_driver_waits_until_all_nodes_have_answered(tmp_path: Path) -> None:
    """The failure may be the consequence of a lost node."""
    led = Led(tmp_path, ServicePlan("web"), spares=1, on_node_loss="restart", max_restarts=1)
    for node_index in range(2):
        led.report(node_index, "ready")
    led.report(0, "failed", detail="exited with 1")
    assert led.protocol.outcome is None
    led.feed(m.NodeLost(1, "fell silent"))
    led.members.all_answered.set()
    await wait_until(lambda: led.parts.posted)
    led.feed_posted()
    assert led.protocol.outcome is None and led.protocol.restart_reason == "fell silent"


@pytest.mark.parametrize("name", ["other", "web"])
async def test_reports_of_another_cycle_or_service_are_ignored(tmp_path: Path, name: str) -> None:
    led = Led(tmp_path, ServicePlan("web"))
    led.report(0, "failed", name, cycle=0 if name == "other" else 1)
    assert led.protocol.outcome is None


# -- endpoints --------------------------------------------------------------------------------------------------------


def pool(*plans: ServicePlan) -> tuple[ServicePlan, ...]:
    return (*plans, ServicePlan("web-endpoint", is_endpoint=True, of="web"))


async def proxies_ready(led: Led, name: str = "web-endpoint") -> None:
    for node_index in range(3):
        led.report(node_index, "ready", name, url="http://127.0.0.1:6000")
    await led.services.publish()


async def test_an_endpoint_of_every_node_gets_the_instances_of_its_service(tmp_path: Path) -> None:
    led = Led(tmp_path, *pool(ServicePlan("web", 2)))
    await proxies_ready(led)
    led.report(1, "ready")
    await led.services.publish()
    assert led.members.of(ServiceMembers) == []  # the driver is not started before all are ready
    led.report(2, "ready")
    await led.services.publish()
    sent = led.members.of(ServiceMembers)
    assert [(node_index, message.service) for node_index, message in sent] == [(n, "web-endpoint") for n in range(3)]
    assert sent[0][1].added == ("http://n1:80", "http://n2:80")
    assert led.services.environment(0)["MUSTER_ENDPOINT_WEB"] == "http://127.0.0.1:6000"
    record = led.record("web-endpoint")
    assert (record["kind"], record["of"], record["local"]) == ("endpoint", "web", True)
    assert "kind" not in led.record("web")
    variables = published_variables(led.identity.attempt, 0, 0)
    assert variables["MUSTER_ENDPOINT_WEB"] == "http://127.0.0.1:6000"
    assert "MUSTER_SERVICE_WEB_ENDPOINT" not in variables


async def test_a_proxy_that_starts_later_gets_the_members_though_they_did_not_change(tmp_path: Path) -> None:
    services_of_run = pool(ServicePlan("web", "head"))
    led = Led(tmp_path, *services_of_run, spares=1, on_node_loss="replace", max_restarts=1)
    led.report(0, "ready")
    for node_index in range(2):
        led.report(node_index, "ready", "web-endpoint", url="http://127.0.0.1:6000")
    await led.services.publish()
    (version,) = {message.version for _, message in led.members.of(ServiceMembers)}
    for node_index in range(2):
        led.services.on_message(node_index, ServiceServes("web-endpoint", version, cycle=0))
    led.members.sent.clear()
    led.services._member_nodes["web-endpoint"].discard(1)  # as when the instance is started again
    led.report(1, "restarting", "web-endpoint")
    await led.services.publish()
    assert [(node_index, message.version) for node_index, message in led.members.of(ServiceMembers)] == [(1, version)]
    await asyncio.wait_for(led.services.wait_until_served(), 120)  # the other proxy has confirmed this version


async def test_replicas_that_a_program_publishes_are_sent_and_confirmed(tmp_path: Path) -> None:
    led = Led(tmp_path, ServicePlan("chat", is_endpoint=True))
    await proxies_ready(led, "chat")
    path = Path(led.identity.attempt.endpoint_replicas("chat"))
    path.write_text(json.dumps({"version": 41, "cycle": 0, "urls": ["http://10.0.0.1:7000"]}))
    await wait_until(lambda: led.members.of(ServiceMembers))
    sent = led.members.of(ServiceMembers)
    assert [(node_index, message.added) for node_index, message in sent] == [
        (node_index, ("http://10.0.0.1:7000",)) for node_index in range(3)
    ]
    for node_index in range(3):
        await led.services.publish()
        assert led.record("chat")["replicas_version"] is None
        led.services.on_message(node_index, ServiceServes("chat", sent[0][1].version, cycle=0))
    await led.services.publish()
    assert led.record("chat")["replicas_version"] == 41
    path.with_suffix(".new").write_text(json.dumps({"version": 42, "cycle": 0, "urls": ["http://10.0.0.1:7000"]}))
    path.with_suffix(".new").rename(path)
    await wait_until(lambda: led.record("chat")["replicas_version"] == 42)  # the same replicas: nothing to wait for
    led.parts.inbox.cancel_tasks()
