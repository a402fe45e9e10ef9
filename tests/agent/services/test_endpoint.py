"""The proxy of an endpoint as a service of a node, with the real program of the run's archive."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path

import pytest
from tests.endpoint.client import EndpointClient
from tests.endpoint.engine import Engine

from muster.agent.control.codec import Message
from muster.agent.control.messages import ServiceLoad, ServiceServes, ServiceStatus
from muster.agent.service_model import ServiceDefinition
from muster.agent.services import endpoint, instance
from muster.agent.services.instance import ServiceInstance
from muster.agent.services.launch import InstanceContext, InstanceFiles
from muster.endpoint import proxy
from muster.launch.agent_archive import build_archive
from muster.lifecycle.services import ServiceState
from muster.ports.socket_leases import take
from muster.rundir.tokens import derive_endpoint_token
from muster.spec.fields import endpoints


def test_agents_and_the_proxy_agree_on_paths_and_names() -> None:
    assert (endpoint.MEMBERS_PATH, endpoint.STATUS_PATH) == (proxy.MEMBERS_PATH, proxy.STATUS_PATH)
    assert endpoint.SUFFIX == endpoints.SUFFIX
    assert endpoint.variable("code-judge-endpoint") == "MUSTER_ENDPOINT_CODE_JUDGE"


async def test_a_node_s_proxy_serves_the_members_that_the_leader_sends_and_reports_its_load(
    tmp_path: Path, context: InstanceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "LOAD_POLL_S", 0.1)
    (tmp_path / "agent.pyz").write_bytes(build_archive(sys.executable, endpoint=True))
    (tmp_path / "private").mkdir(mode=0o700)
    engine = await Engine("e0").open()
    messages: asyncio.Queue[Message] = asyncio.Queue()

    async def next_message(kind: type[Message]) -> Message:
        while True:
            message = await asyncio.wait_for(messages.get(), 120)
            if isinstance(message, kind):
                return message

    service = ServiceDefinition("web-endpoint", kind="endpoint", endpoint={"health": "/health", "wait": 60.0}, of="web")
    on_node = dataclasses.replace(context, agent=str(tmp_path / "agent.pyz"), node=(1, 4))
    files = InstanceFiles(str(tmp_path / "private" / "web"), str(tmp_path / "logs" / "web.log"))
    leases = {"http": take("test_endpoint")}
    running = ServiceInstance(service, on_node, files, leases, messages.put_nowait, cycle=0)
    running.start()
    ready = await next_message(ServiceStatus)
    while isinstance(ready, ServiceStatus) and ready.state is not ServiceState.READY:
        ready = await next_message(ServiceStatus)
    assert isinstance(ready, ServiceStatus) and ready.url == f"http://127.0.0.1:{leases['http'].number}"
    await running.set_members(3, [engine.url])
    assert await next_message(ServiceServes) == ServiceServes("web-endpoint", 3, 0)
    client = EndpointClient(leases["http"].number, derive_endpoint_token(b"secret"))
    assert (await client.ask()).engine == "e0"
    load = await next_message(ServiceLoad)
    while isinstance(load, ServiceLoad) and not load.load["requests"]:
        load = await next_message(ServiceLoad)
    assert isinstance(load, ServiceLoad) and load.load["replicas"][0]["url"] == engine.url
    await running.close()
    engine.close()
