"""One instance of a service: starts, restarts, reports, and what is left of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from muster.agent.control.codec import Message
from muster.agent.control.messages import ServiceStatus
from muster.agent.service_model import ServiceDefinition
from muster.agent.services import sandbox
from muster.agent.services.instance import ServiceInstance
from muster.agent.services.launch import InstanceContext, InstanceFiles


class Reports:
    """The messages of an instance, in order."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Message] = asyncio.Queue()

    async def next(self, state: str) -> ServiceStatus:
        """Return the next report of this state."""
        while True:
            report = await asyncio.wait_for(self.queue.get(), 120)
            if isinstance(report, ServiceStatus) and report.state.value == state:
                return report


def instance(context: InstanceContext, reports: Reports, command: str, **fields: Any) -> ServiceInstance:
    service = ServiceDefinition("web", ["bash", "-c", command], **fields)
    directory = Path(context.workdir, "private")
    directory.mkdir(mode=0o700, exist_ok=True)
    log, send = f"{context.workdir}/logs/web.log", reports.queue.put_nowait
    return ServiceInstance(service, context, InstanceFiles(str(directory / "web"), log), {}, send, cycle=0)


async def test_an_instance_is_ended_with_all_that_it_started(tmp_path: Path, context: InstanceContext) -> None:
    reports = Reports()
    web = instance(context, reports, "sleep 600 & echo $! > pid; touch {dir}/up; wait", ready={"file": "up"})
    web.start()
    await reports.next("ready")
    await web.close()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    assert not (tmp_path / "private").exists()


async def test_nothing_of_the_start_before_is_left_when_it_starts_again(
    tmp_path: Path, context: InstanceContext
) -> None:
    reports = Reports()
    command = "[ ! -e {dir}/left ] || touch bad; touch {dir}/left; echo begins; until [ -e die ]; do sleep 0.05; done"
    command += "; exit 4"
    web = instance(context, reports, command, ready={"log": "begins"}, max_restarts=1)
    web.start()
    await reports.next("ready")
    (tmp_path / "die").touch()
    assert (await reports.next("restarting")).detail == "exited with 4"
    failed = await reports.next("failed")
    assert failed.detail == "exited with 4, and may not be started again (max_restarts: 1)"
    assert failed.restarts == 1
    await web.close()
    assert not (tmp_path / "bad").exists()


async def test_an_instance_that_is_closed_while_it_waits_for_its_restart_is_not_started_again(
    tmp_path: Path, context: InstanceContext
) -> None:
    reports = Reports()
    web = instance(context, reports, "echo begins >> starts; sleep 0.2; exit 1", max_restarts=9)
    web.start()
    await reports.next("restarting")
    await web.close()
    assert (tmp_path / "starts").read_text() == "begins\n"


async def test_an_instance_that_never_becomes_ready_says_why(context: InstanceContext) -> None:
    reports = Reports()
    web = instance(context, reports, "sleep 600", ready={"command": ["false"]})
    web.start()
    assert (await reports.next("starting")).detail == "false exited with 1"
    await web.close()


async def test_an_instance_that_does_its_work_and_leaves_was_ready(context: InstanceContext) -> None:
    reports = Reports()
    web = instance(context, reports, "touch {dir}/done", ready={"file": "done"})
    web.start()
    await reports.next("ready")
    assert (await reports.next("ended")).detail == "exited with 0"
    await web.close()


async def test_a_probe_that_cannot_be_started_says_so(context: InstanceContext) -> None:
    reports = Reports()
    web = instance(context, reports, "sleep 600", ready={"command": ["no-such-probe"]})
    web.start()
    assert (await reports.next("starting")).detail == "no-such-probe exited with 127"
    await web.close()


async def test_members_are_known_to_a_sandbox_in_every_start(tmp_path: Path, context: InstanceContext) -> None:
    reports = Reports()
    web = instance(context, reports, "sleep 600", kind="command")
    object.__setattr__(web._service, "kind", "sandbox")
    web.members = (1, ["http://a:1"])
    (tmp_path / "private" / "web").mkdir()
    await web.set_members(2, ["http://a:1", "http://b:1"])
    found = json.loads((tmp_path / "private" / "web" / sandbox.MEMBERS_FILE).read_text())
    assert found == {"version": 2, "endpoints": ["http://a:1", "http://b:1"]}
    web._prepare()
    assert json.loads((tmp_path / "private" / "web" / sandbox.MEMBERS_FILE).read_text())["version"] == 2


async def test_an_instance_that_leaves_before_it_is_ready_again_has_failed_once_more(
    tmp_path: Path, context: InstanceContext
) -> None:
    reports = Reports()
    command = "if [ -e die ]; then exit 0; fi; touch {dir}/up; until [ -e die ]; do sleep 0.05; done; exit 3"
    web = instance(context, reports, command, ready={"file": "up"}, max_restarts=1)
    web.start()
    await reports.next("ready")
    (tmp_path / "die").touch()
    assert (await reports.next("restarting")).detail == "exited with 3"
    assert (await reports.next("failed")).detail == "exited with 0, and may not be started again (max_restarts: 1)"
    await web.close()


async def test_members_that_cannot_be_written_do_not_end_the_instance(tmp_path: Path, context: InstanceContext) -> None:
    web = instance(context, Reports(), "sleep 600")
    object.__setattr__(web._service, "kind", "sandbox")
    directory = tmp_path / "private" / "web"
    (directory / sandbox.MEMBERS_FILE).mkdir(parents=True)  # where a file should be
    await web.set_members(2, ["http://a:1"])
    assert web.members == (2, ["http://a:1"])
