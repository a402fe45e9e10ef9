"""What a node does for a service, part by part: words, ports, probes, and the life of an instance."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.agent.ray.ports import take_block
from muster.agent.services import ports, probes, sandbox, templating
from muster.agent.services.instance import ServiceInstance
from muster.agent.services.launch import Where, endpoints, launch_of
from muster.agent.services.model import ServiceDefinition, plans_of
from muster.port_ranges import NEMO_RL_BANDS, HostPorts

ENV = {"PATH": os.environ["PATH"], "KEPT": "1", "OTHER": "2"}


def where(tmp_path: Path) -> Where:
    return Where("127.0.0.1", "/run/agent.pyz", b"secret", str(tmp_path), ENV)


# -- words --------------------------------------------------------------------------------------------------------


def test_placeholders_are_put_in_and_the_shell_s_own_braces_stay() -> None:
    values = templating.placeholders({"http": 7001, "admin": 7002}, "10.0.0.1", "/tmp/d")
    text = "serve {http} {port} {admin} {address} {dir} ${http} {} {unknown} {'a': 1}"
    assert templating.filled(text, values) == "serve 7001 7001 7002 10.0.0.1 /tmp/d ${http} {} {unknown} {'a': 1}"


@pytest.mark.parametrize(
    ("leased", "ready", "url"),
    [
        ({"http": 1, "admin": 2}, {}, "http://10.0.0.1:1"),
        ({"admin": 2, "http": 1}, {}, "http://10.0.0.1:1"),
        ({"https": 1}, {}, "https://10.0.0.1:1"),
        ({"redis": 1}, {}, "tcp://10.0.0.1:1"),
        ({"api": 1}, {"http": "/"}, "http://10.0.0.1:1"),
        ({}, {}, None),
    ],
)
def test_the_url_says_which_port_and_how(leased: dict[str, int], ready: dict[str, str], url: str | None) -> None:
    assert templating.url_of(ServiceDefinition("web", ready=ready), "10.0.0.1", leased) == url


def test_an_ipv6_address_is_in_brackets() -> None:
    assert templating.url_of(ServiceDefinition("web"), "fd00::1", {"http": 80}) == "http://[fd00::1]:80"


def test_a_service_gets_all_of_the_environment_or_what_is_named(tmp_path: Path) -> None:
    service = ServiceDefinition("web", ["serve", "{http}"], env={"AT": "{http}"}, ports={"http": "auto"})
    launch = launch_of(service, where(tmp_path), {"http": 7001}, "/tmp/d")
    assert launch.argv == ["serve", "7001"]
    assert launch.env == {**ENV, "MUSTER_PORT_HTTP": "7001", "MUSTER_SERVICE_DIR": "/tmp/d", "AT": "7001"}
    named = ServiceDefinition("web", ["serve"], env_passthrough=["KE*"])
    assert set(launch_of(named, where(tmp_path), {}, "/d").env) == {"PATH", "KEPT", "MUSTER_SERVICE_DIR"}


def test_the_protocol_learns_what_it_has_to_of_a_job_s_services() -> None:
    record = {"scope": 2, "gate": False, "deadline": 5.0, "kind": "command"}
    (plan,) = plans_of({"web": record})
    assert (plan.name, plan.scope, plan.gate, plan.deadline) == ("web", 2, False, 5.0)
    assert plans_of(None) == ()


def test_a_sandbox_is_told_everything_on_its_stdin(tmp_path: Path) -> None:
    service = ServiceDefinition("box", kind="sandbox", settings={"workers_max": 3})
    leased = {"http": 7001, "between": 7002}
    launch = launch_of(service, where(tmp_path), leased, "/tmp/d")
    assert launch.argv == [sys.executable, "-I", "-S", "/run/agent.pyz", "sandbox", "-"]
    assert set(launch.env) == {"PATH"}  # nothing of the job's that programs could find
    told = json.loads(launch.stdin or b"")
    assert (told["port"], told["listen"], told["workers_max"]) == (7001, "127.0.0.1:7002", 3)
    assert (told["ready_file"], told["members_file"]) == ("/tmp/d/ready.json", "/tmp/d/members.json")
    assert told["token"] == sandbox.token(b"secret") and len(told["token"]) == 64
    assert endpoints(service, "10.0.0.1", leased) == ("http://127.0.0.1:7001", "http://10.0.0.1:7002")


# -- ports --------------------------------------------------------------------------------------------------------


def test_nobody_else_gets_a_leased_port_before_or_after_the_service_has_it() -> None:
    first = ports.take("seed")
    second = ports.take("seed")
    first.give()
    third = ports.take("seed")
    assert len({first.number, second.number, third.number}) == 3
    assert not [band for band in NEMO_RL_BANDS if first.number in band]
    for lease in (first, second, third):
        lease.release()
    again = ports.take("seed")
    assert again.number == first.number
    again.release()


def test_a_port_is_taken_when_somebody_listens_there() -> None:
    lease = ports.take("seed")
    lease.give()
    assert not lease.taken()
    with socket.create_server(("", lease.number)):
        assert lease.taken()
    lease.release()


def test_a_pinned_port_is_that_or_none() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(OSError, match=r"port \d+ is taken on this host"):
        ports.take("seed", taken.getsockname()[1])


def test_ports_that_are_pinned_for_ray_are_avoided() -> None:
    free = ports.take("seed")
    free.release()
    other = ports.take("seed", avoid=range(free.number, free.number + 5))
    other.release()
    assert other.number not in range(free.number, free.number + 5)


def test_every_port_is_tried_once_and_those_outside_ray_s_blocks_and_the_ephemeral_range_first() -> None:
    tried = [number for _, number in ports.candidates("seed", HostPorts())]
    assert sorted(tried) == list(range(1024, 65536))
    assert set(tried[:1176]) == {*range(1024, 1200), *range(9000, 10000)}
    assert set(tried[-28232:]) == set(range(32768, 61000))


def test_ray_s_blocks_are_elsewhere() -> None:
    block = take_block("seed", 100)
    lease = ports.take("seed")
    assert block.block.base >= 10000 > lease.number
    lease.release()
    block.release()


# -- probes -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[Callable[[bytes], Any]]:
    """Starts a server that answers everything with these bytes; returns its port."""
    servers: list[asyncio.AbstractServer] = []

    async def begin(answer: bytes) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        port: int = servers[-1].sockets[0].getsockname()[1]
        return port

    yield begin
    for one in servers:
        one.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", None),
        (b"HTTP/1.0 302 Found\r\n\r\n", None),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "status 503"),
        (b"hello", "does not speak HTTP"),
        (b"", "does not speak HTTP"),
    ],
)
async def test_http_is_ready_with_an_answer_below_400(server: Any, answer: bytes, why: str | None) -> None:
    found = await probes.http("127.0.0.1", await server(answer), "/health")()
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("body", "ready"), [(b'{"status": "healthy"}', True), (b'{"status": "x"}', False), (b"[]", False)]
)
async def test_a_sandbox_says_itself_that_it_is_healthy(server: Any, body: bytes, ready: bool) -> None:
    port = await server(b"HTTP/1.1 200 OK\r\n\r\n" + body)
    assert (await probes.http("127.0.0.1", port, "/health", probes.healthy)() is None) == ready


async def test_tcp_says_where_nothing_answers(server: Any) -> None:
    assert await probes.tcp("127.0.0.1", await server(b""))() is None
    lease = ports.take("nobody")
    lease.give()
    found = await probes.tcp("127.0.0.1", lease.number)()
    assert found == f"nothing accepts connections at 127.0.0.1:{lease.number}: connection refused"
    lease.release()


async def test_a_file_that_was_there_before_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "up"
    assert "is not there" in (await probes.file(str(path))() or "")
    path.write_text("old")
    probe = probes.file(str(path))
    assert "is older than this start" in (await probe() or "")
    path.write_text("newer")
    assert await probe() is None


async def test_a_log_is_looked_at_from_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("serving\n")
    probe = probes.log(str(path), "^serving$")
    assert await probe() == "no line of its log matches '^serving$'"
    with path.open("a") as log:
        log.write("not serving yet\nser")
    assert await probe() is not None
    with path.open("a") as log:
        log.write("ving\n")
    assert await probe() is None


async def test_a_log_that_was_rotated_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a long story before\n")
    probe = probes.log(str(path), "up")
    path.rename(tmp_path / "log.1")
    path.write_text("up\n")
    assert await probe() is None


async def test_a_command_is_ready_when_it_exits_with_0() -> None:
    codes = iter([3, 0])

    async def run() -> int:
        return next(codes)

    probe = probes.command(run, "check it")
    assert await probe() == "check it exited with 3"
    assert await probe() is None


# -- an instance --------------------------------------------------------------------------------------------------


class Told:
    """What an instance says, in order."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def __call__(self, kind: str, **fields: Any) -> None:
        self.words.put_nowait(fields)

    async def next(self, state: str) -> dict[str, Any]:
        """The next word of this state."""
        while (said := await asyncio.wait_for(self.words.get(), 120))["state"] != state:
            pass
        return said


def instance(tmp_path: Path, told: Told, command: str, **fields: Any) -> ServiceInstance:
    service = ServiceDefinition("web", ["bash", "-c", command], **fields)
    (tmp_path / "private").mkdir(mode=0o700, exist_ok=True)
    log = str(tmp_path / "logs" / "web.log")
    return ServiceInstance(service, where(tmp_path), str(tmp_path / "private" / "web"), log, {}, told)


async def test_an_instance_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    told = Told()
    web = instance(tmp_path, told, "sleep 600 & echo $! > pid; touch {dir}/up; wait", ready={"file": "up"})
    web.start()
    await told.next("ready")
    await web.close()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    assert not (tmp_path / "private").exists()


async def test_nothing_of_the_start_before_is_left_when_it_starts_again(tmp_path: Path) -> None:
    told = Told()
    command = "[ ! -e {dir}/left ] || touch bad; touch {dir}/left; echo begins; until [ -e die ]; do sleep 0.05; done"
    command += "; exit 4"
    web = instance(tmp_path, told, command, ready={"log": "begins"}, max_restarts=1)
    web.start()
    await told.next("ready")
    (tmp_path / "die").touch()
    assert (await told.next("restarting"))["words"] == "exited with 4"
    failed = await told.next("failed")
    assert failed["words"] == "exited with 4, and may not be started again (max_restarts: 1)"
    assert failed["restarts"] == 1
    await web.close()
    assert not (tmp_path / "bad").exists()


async def test_one_that_is_closed_while_it_waits_for_its_restart_is_not_started_again(tmp_path: Path) -> None:
    told = Told()
    web = instance(tmp_path, told, "echo begins >> starts; sleep 0.2; exit 1", max_restarts=9)
    web.start()
    await told.next("restarting")
    await web.close()
    assert (tmp_path / "starts").read_text() == "begins\n"


async def test_one_that_never_becomes_ready_says_why(tmp_path: Path) -> None:
    told = Told()
    web = instance(tmp_path, told, "sleep 600", ready={"command": ["false"]})
    web.start()
    assert (await told.next("starting"))["words"] == "false exited with 1"
    await web.close()


async def test_one_that_does_its_work_and_leaves_was_ready(tmp_path: Path) -> None:
    told = Told()
    web = instance(tmp_path, told, "touch {dir}/done", ready={"file": "done"})
    web.start()
    await told.next("ready")
    assert (await told.next("ended"))["words"] == "exited with 0"
    await web.close()


async def test_a_probe_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    told = Told()
    web = instance(tmp_path, told, "sleep 600", ready={"command": ["no-such-probe"]})
    web.start()
    assert (await told.next("starting"))["words"] == "no-such-probe exited with 127"
    await web.close()


async def test_members_are_known_to_a_sandbox_in_every_start(tmp_path: Path) -> None:
    told = Told()
    web = instance(tmp_path, told, "sleep 600", kind="command")
    object.__setattr__(web._service, "kind", "sandbox")
    web.members = (1, ["http://a:1"])
    (tmp_path / "private" / "web").mkdir()
    await web.members_are(2, ["http://a:1", "http://b:1"])
    found = json.loads((tmp_path / "private" / "web" / sandbox.MEMBERS_FILE).read_text())
    assert found == {"version": 2, "endpoints": ["http://a:1", "http://b:1"]}
    web._prepare()
    assert json.loads((tmp_path / "private" / "web" / sandbox.MEMBERS_FILE).read_text())["version"] == 2


async def test_one_that_leaves_before_it_is_ready_again_has_failed_once_more(tmp_path: Path) -> None:
    told = Told()
    command = "if [ -e stale ]; then exit 0; fi; touch stale {dir}/up; sleep 0.2; exit 3"
    web = instance(tmp_path, told, command, ready={"file": "up"}, max_restarts=1)
    web.start()
    assert (await told.next("restarting"))["words"] == "exited with 3"
    assert (await told.next("failed"))["words"] == "exited with 0, and may not be started again (max_restarts: 1)"
    await web.close()


async def test_members_that_cannot_be_written_end_nobody(tmp_path: Path) -> None:
    web = instance(tmp_path, Told(), "sleep 600")
    object.__setattr__(web._service, "kind", "sandbox")
    place = tmp_path / "private" / "web"
    (place / sandbox.MEMBERS_FILE).mkdir(parents=True)  # where a file should be
    await web.members_are(2, ["http://a:1"])
    assert web.members == (2, ["http://a:1"])
