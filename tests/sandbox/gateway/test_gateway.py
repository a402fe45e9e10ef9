"""The gateway: every node's endpoint serves the whole cluster."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.running import wait_for
from tests.sandbox.cluster import TOKEN, Cluster
from tests.sandbox.conftest import LEVELS

from muster.process.proctree import read_processes
from muster.sandbox.gateway.gateway import Gateway
from muster.sandbox.hash_ring import Ring
from muster.sandbox.settings import SandboxSettings

if TYPE_CHECKING:
    from tests.sandbox.serving import Answer, Served

KEYS = {"process_status", "stdout", "stderr"}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes that stay."""
    cluster = Cluster(tmp_path_factory.mktemp("four"), 4)
    yield cluster
    cluster.close()


def at_once(do: Callable[[int], Any], count: int, threads: int = 8) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(do, range(count)))


def member_of(answer: Answer) -> str:
    return answer.headers["X-Muster-Member"]


# -- spreading ------------------------------------------------------------------------------------------------------


def test_executions_at_one_endpoint_are_spread_evenly_over_all_nodes(four: Cluster) -> None:
    before = [four.executed(number) for number in range(4)]
    node = four.nodes[0]
    answers = at_once(lambda number: node.execute(f"print({number})"), 400)
    assert [answer["stdout"] for answer in answers] == [f"{number}\n" for number in range(400)]
    spread = [four.executed(number) - before[number] for number in range(4)]
    assert sum(spread) == 400 and all(50 <= count <= 150 for count in spread), spread
    assert Counter(map(member_of, answers)) == Counter(dict(zip(four.addresses, spread, strict=True)))


def test_a_session_is_at_the_same_node_whichever_endpoint_is_called(four: Cluster) -> None:
    names = [four.nodes[0].new_session() for _ in range(12)]
    ring = Ring(four.endpoints)
    for number, name in enumerate(names):
        answers = [node.cell("n = n + 1 if 'n' in dir() else 0\nn", name) for node in four.nodes]
        assert [answer["stdout"] for answer in answers] == ["0\n", "1\n", "2\n", "3\n"]
        assert [answer["new_session_created"] for answer in answers] == [True, False, False, False]
        assert {f"http://{member_of(answer)}" for answer in answers} == {ring.owner(name.encode())}, number
    assert len({ring.owner(name.encode()) for name in names}) > 1
    listed = [set(node.ask("GET", "/sessions")["sessions"]) for node in four.nodes]
    assert all(set(names) <= one for one in listed)
    for number, name in enumerate(names):
        gone = [four.nodes[(number + step) % 4].ask("DELETE", f"/sessions/{name}").status for step in range(2)]
        assert gone == [200, 404]


def test_a_session_with_a_name_that_must_be_quoted_is_deleted_where_it_is(four: Cluster) -> None:
    for name in ("a b/c", "x%20y", "q?r#s", "a+b&c=d"):
        assert four.nodes[0].cell("1", name)["new_session_created"] is True
        quoted = "".join(f"%{byte:02X}" for byte in name.encode())
        assert [node.ask("DELETE", f"/sessions/{quoted}").status for node in four.nodes[:2]] == [200, 404], name


def test_calls_that_share_a_workspace_meet_at_one_node(four: Cluster) -> None:
    headers = {"X-Workspace-ID": four.nodes[0].new_session()}
    four.nodes[0].execute("echo here > file", "shell", headers=headers)
    assert [node.out("cat file", "shell", headers=headers) for node in four.nodes] == ["here\n"] * 4
    where = f"/workspaces/{headers['X-Workspace-ID']}"
    assert [four.nodes[number].ask("DELETE", where).status for number in (2, 3)] == [200, 404]


# -- what passes, and what does not ---------------------------------------------------------------------------------


def test_large_bodies_and_large_answers_pass(four: Cluster) -> None:
    node = four.nodes[0]
    answer = node.execute(f"print(len({'a' * 3_000_000!r}))\nprint('x' * (8 << 20))", max_output_characters=9 << 20)
    assert answer["stdout"] == "3000000\n" + "x" * (8 << 20) + "\n"


def test_a_batch_is_streamed(four: Cluster) -> None:
    """The first line is there while the second program runs, which is ended when we leave."""
    node = four.nodes[0]
    programs = [
        {"generated_code": "print(1)", "timeout": 60},
        {"generated_code": "import time; time.sleep(600)", "timeout": 900},
    ]
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
    body = json.dumps({"requests": programs})
    connection.request("POST", "/batch", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert json.loads(response.readline())["stdout"] == "1\n"
    response.close()
    connection.close()  # and the other program is ended, wherever it runs
    wait_for("its slot", lambda: all(one["running"] == 0 for one in loads(four).values()))


def loads(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.nodes[0].ask("GET", "/cluster/load")["nodes"]
    return found


def test_an_endpoint_tells_of_its_own_node_and_of_the_cluster(four: Cluster) -> None:
    node = four.nodes[0]
    assert node.ask("GET", "/health")["status"] == "healthy"
    assert node.ask("GET", "/load")["host"] == socket.gethostname()
    assert "muster_sandbox_info" in node.ask("GET", "/metrics")["text"]
    assert sorted(loads(four)) == sorted(four.endpoints)
    assert node.ask("GET", "/gateway")["endpoints"] == sorted(four.endpoints)
    assert node.ask("GET", "/nothing").status == 404


def test_refusals_of_nodes_pass_as_they_are(four: Cluster) -> None:
    node = four.nodes[0]
    refused = node.execute("1", "cobol")
    assert refused.status == 400 and set(refused) >= KEYS and "unknown language 'cobol'" in refused["error"]
    must = node.cell("1", node.new_session(), headers={"X-Session-Must-Exist": "1"})
    assert (must.status, must["reason"]) == (409, "session_lost")


@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {TOKEN}", "Bearer "])
def test_between_nodes_the_token_is_wanted(four: Cluster, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    node, port = four.nodes[1], four.nodes[1].facts["listen_port"]
    for method, path in (("POST", "/execute"), ("GET", "/cluster/load"), ("GET", "/health")):
        answer = node.ask(method, path, {"generated_code": "1", "timeout": 1}, headers, port, "127.0.0.2")
        assert answer.status == 401 and set(answer) >= KEYS


def test_the_gateway_sends_the_token_and_nothing_that_a_client_sent_in_its_place(start: Callable[..., Cluster]) -> None:
    cluster = start()
    with listening() as (endpoint, heads):
        cluster.tell([endpoint])
        headers = {"Authorization": "Bearer of-the-client", "X-Session-ID": "s", "X-Mine": "1"}
        answer = cluster.nodes[0].ask("POST", "/execute", {"generated_code": "1"}, headers)
        assert answer == {"ok": 1}
    assert [line for line in heads[0] if line.startswith("authorization:")] == [f"authorization: bearer {TOKEN}"]
    assert "x-mine: 1" in heads[0] and "x-session-id: s" in heads[0] and "of-the-client" not in "".join(heads[0])
    assert TOKEN not in command_lines() and TOKEN not in cluster.nodes[0].said()


@contextlib.contextmanager
def listening(answer: bytes | None = b'{"ok": 1}') -> Iterator[tuple[str, list[list[str]]]]:
    """A node that notes heads of requests, in lower case but for the token, and answers, or breaks off."""
    heads: list[list[str]] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    data = connection.recv(1 << 20)
                    if data:
                        lines = data.partition(b"\r\n\r\n")[0].decode().split("\r\n")
                        heads.append([line.lower().replace(TOKEN.lower(), TOKEN) for line in lines])
                        if answer is not None:
                            kind = b"Content-Type: application/json\r\n"
                            connection.sendall(
                                b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (kind, len(answer), answer)
                            )
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", heads
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def command_lines() -> str:
    found = []
    for pid in read_processes():
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
    return "\n".join(found)


# -- losses ---------------------------------------------------------------------------------------------------------


def test_a_request_that_was_sent_is_sent_to_nobody_else(start: Callable[..., Cluster]) -> None:
    """502: it may have run. 503: nobody had it. Both say where."""
    cluster = start()
    with listening(None) as (first, heads), listening(None) as (second, more):
        cluster.tell([first, second])
        answer = cluster.nodes[0].execute("print(1)", patient=False)
        assert answer.status == 502 and set(answer) >= KEYS and answer["reason"] == "lost"
        assert "it may or may not have run" in answer["error"] and member_of(answer) in answer["stderr"]
        assert len(heads) + len(more) == 1
    for answer in (cluster.nodes[0].execute("1", patient=False), cluster.nodes[0].cell("1", "s", patient=False)):
        assert answer.status == 503 and set(answer) >= KEYS and answer["reason"] == "unreachable"
        assert "nothing was run" in answer["error"] and re.search(r"127\.0\.0\.1:\d|any node", answer["error"])


def test_a_node_killed_in_the_middle_costs_what_was_in_flight_there(start: Callable[..., Cluster]) -> None:
    cluster = start(3)
    killed = threading.Event()
    sent = threading.Semaphore(0)

    def call(number: int) -> Answer:
        sent.release()
        return cluster.nodes[number % 2].execute(f"import time; time.sleep(0.02); print({number})", timeout=60)

    def kill() -> None:
        for _ in range(100):
            sent.acquire()
        cluster.kill(2)
        killed.set()

    killer = threading.Thread(target=kill)
    killer.start()
    answers = at_once(call, 400, 12)
    killer.join()
    failed = [answer for answer in answers if answer.status != 200]
    assert all(answer.status == 502 and member_of(answer) == cluster.addresses[2] for answer in failed)
    assert all("may or may not have run" in answer["stderr"] for answer in failed) and len(failed) <= 12
    good = [answer for answer in answers if answer.status == 200]
    assert {answer["stdout"] for answer in good} <= {f"{number}\n" for number in range(400)} and len(good) >= 388
    assert {member_of(answer) for answer in good} == set(cluster.addresses)


# -- members --------------------------------------------------------------------------------------------------------


def test_a_change_of_members_drops_nothing(start: Callable[..., Cluster]) -> None:
    """While 8 MB answers are on their way, and small programs come and go."""
    cluster = start(2)
    over = threading.Event()
    node = cluster.nodes[0]

    def large(_: int) -> int:
        return len(node.execute("print('x' * (8 << 20))", max_output_characters=9 << 20)["stdout"])

    def small() -> list[int]:
        found = []
        while not over.is_set():
            found.append(node.execute("print(1)").status)
        return found

    with ThreadPoolExecutor(6) as pool:
        smalls = [pool.submit(small) for _ in range(3)]
        larges = [pool.submit(large, number) for number in range(9)]
        try:
            for number in range(8):
                cluster.tell(cluster.endpoints[: 1 + number % 2])
            assert [one.result() for one in larges] == [(8 << 20) + 1] * 9
        finally:
            over.set()
        assert {status for one in smalls for status in one.result()} == {200}


def test_members_that_are_none_are_refused_by_name_and_those_before_stay(start: Callable[..., Cluster]) -> None:
    cluster = start()
    words = f"members refused: {cluster.members_file}: "
    for number, bad in enumerate(('["http://127.0.0.1:1; } evil"]', '"http://127.0.0.1:1"', '["http://n1:80"]', ",")):
        cluster.write(f'{{"version": 9, "endpoints": {bad}}}')
        wait_for(f"the refusal of {bad}", lambda number=number: cluster.nodes[0].said().count(words) == number + 1)
        assert cluster.version_at(cluster.nodes[0]) == 1 and cluster.nodes[0].out("print(1)") == "1\n"
    cluster.tell([])  # nobody: then this node is alone
    assert cluster.nodes[0].out("print(1)") == "1\n"


@pytest.mark.parametrize("level", LEVELS[:2])
def test_a_node_serves_alone_until_there_are_members(own: Callable[..., Served], tmp_path: Path, level: str) -> None:
    served = own(level, listen="127.0.0.1:0", token="t", members_file=str(tmp_path / "not-yet"))
    assert served.facts["gateway"] == "python"
    assert served.out("print(1)") == "1\n" and served.cell("1", "s")["stdout"] == "1\n"
    assert served.ask("GET", "/gateway")["endpoints"] == []


def test_single_node_is_alone_whatever_the_members(own: Callable[..., Served], tmp_path: Path) -> None:
    (tmp_path / "members").write_text('{"version": 1, "endpoints": ["http://127.0.0.1:1"]}')
    served = own(listen="127.0.0.1:0", token="t", members_file=str(tmp_path / "members"), single_node=True)
    assert served.facts["gateway"] is None and served.out("print(1)") == "1\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_at_the_end_no_port_and_no_file_is_left(start: Callable[..., Cluster], signum: int) -> None:
    node = start().nodes[0]
    node.stop(signum)
    wait_for("the files", lambda: not list(node.place.glob("muster-*")))
    socket.create_server(("127.0.0.1", node.port)).close()


# -- without a sandbox ------------------------------------------------------------------------------------------------


async def test_a_gateway_serves_until_it_is_closed_and_tells_what_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "members").write_text('{"version": 3, "endpoints": ["http://127.0.0.1:9"]}')
    bound = socket.create_server(("127.0.0.1", 0))
    address = bound.getsockname()
    settings = SandboxSettings(members_file=str(tmp_path / "members"), listen="127.0.0.1:0", token="t0p")
    gateway = Gateway(settings, bound, "127.0.0.1:9", 8)
    await gateway.open()
    assert gateway.facts() == {"kind": "python", "version": 3, "members": 1, "problem": None}
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /gateway HTTP/1.1\r\n\r\n")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
    assert head.startswith(b"HTTP/1.1 200 ")
    gateway._log_rejection("the reason")
    assert capsys.readouterr().err == "muster sandbox: members refused: the reason; those of version 3 stay\n"
    await gateway.close()
    await asyncio.wait_for(reader.read(), 120)  # to the end of the idle connection
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
