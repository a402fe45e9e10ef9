"""A node's services: ports are leased before the start, and failures are reported."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from muster.agent.control.codec import Message
from muster.agent.control.messages import ServiceServes, ServiceStatus
from muster.agent.job import Identity, Job
from muster.agent.services.members import NO_MEMBERS, MemberList
from muster.agent.services.node import NodeServices, pinned_ports
from muster.rundir import RunPaths

FIELDS = {"groups": [], "nodes": 2, "spares": 0, "ray": True}
JOB: dict[str, Any] = {**dict.fromkeys(Job.__dataclass_fields__), **FIELDS}


class Node:
    """A node with the given services, and the messages that it sends to the leader."""

    def __init__(self, tmp_path: Path, services: dict[str, Any]) -> None:
        run = RunPaths(str(tmp_path / "run-20260101T000000-ab12"))
        Path(run.root).mkdir()
        self.identity = Identity(node_index=1, host="n1", run=run, attempt=run.attempt(0), local=True)
        Path(run.job).write_text(json.dumps({**JOB, "workdir": str(tmp_path)}))
        Path(run.env).write_text("{}")
        Path(run.services).write_text(json.dumps(services))
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.services = NodeServices(self.identity, 0, "127.0.0.1", b"secret", self.messages.put_nowait)

    async def reported(self, state: str) -> ServiceStatus:
        while True:
            message = await asyncio.wait_for(self.messages.get(), 120)
            if isinstance(message, ServiceStatus) and message.state.value == state:
                return message


async def test_endpoints_are_known_before_the_start_and_instances_start_on_request(tmp_path: Path) -> None:
    on_head = {"command": ["sleep", "1000"], "scope": "head", "ports": {"http": "auto"}}
    node = Node(tmp_path, {"web": {**on_head, "scope": "all", "ready": {"command": ["true"]}}, "other": on_head})
    await node.services.prepare(leads=False)
    env = node.services.environment()
    assert env["MUSTER_SERVICE_WEB"].startswith("http://127.0.0.1:") and "MUSTER_SERVICE_OTHER" not in env
    node.services.start(["web"])
    ready = await node.reported("ready")
    assert (ready.service, ready.url, ready.cycle) == ("web", env["MUSTER_SERVICE_WEB"], 0)
    await node.services.close()


async def test_a_fixed_port_that_is_taken_fails_the_service(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        node = Node(tmp_path, {"web": {"command": ["sleep", "1000"], "ports": {"http": port}}})
        await node.services.prepare(leads=False)
        assert f"port {port} is taken" in (await node.reported("failed")).detail
        await node.services.close()


async def test_a_node_that_does_not_know_the_members_before_a_change_asks_for_all_of_them(tmp_path: Path) -> None:
    node = Node(tmp_path, {})
    before = MemberList(1, frozenset({"http://a:1", "http://b:1", "http://c:1"}))
    after = MemberList(2, before.endpoints - {"http://c:1"})
    await node.services.set_members(after.since(before, "box", 0))
    assert node.messages.get_nowait() == ServiceServes("box", NO_MEMBERS, 0)
    await node.services.set_members(before.complete("box", 0))
    await node.services.set_members(after.since(before, "box", 0))
    assert node.messages.empty()


@pytest.mark.parametrize(("local", "size"), [(True, 200), (False, 1000)])
def test_services_avoid_the_ports_pinned_for_ray(tmp_path: Path, local: bool, size: int) -> None:
    run = RunPaths(str(tmp_path))
    identity = Identity(node_index=0, host="n0", run=run, attempt=run.attempt(0), local=local)
    assert pinned_ports(identity, Job(**{**JOB, "port_base": 20000})) == range(20000, 20000 + size)
    assert pinned_ports(identity, Job(**JOB)) == range(0)
