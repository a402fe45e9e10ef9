"""Attacks over HTTP: web pages that reach for the loopback port, and load on the port between nodes without its token.

Each is tried at the server itself and at the gateway, and must have no effect.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.browser import Page, another_origin, needs_browser
from tests.running import wait_for
from tests.sandbox.cluster import TOKEN, Cluster
from tests.sandbox.conftest import serve_at
from tests.sandbox.http_messages import AMBIGUOUS
from tests.sandbox.serving import Served

from muster.sandbox import AsyncClient, Client

PROGRAM = {"generated_code": "print(6 * 7)", "timeout": 30, "language": "python"}
BODY = json.dumps(PROGRAM).encode()
JSON = "application/json"
EVIL = "http://evil.example"
GROWTH_MB = 48  # more than noise, less than what any of these attacks took
PATIENCE_S = 60.0


class Fronts:
    """A server on its own, and the node of a cluster, behind its gateway."""

    def __init__(self, place: Path) -> None:
        self.cluster = Cluster(place, 1)
        alone = serve_at("root" if os.getuid() == 0 else "user", listen="127.0.0.1:0", token=TOKEN)
        self.nodes = {"server": alone, "gateway": self.cluster.nodes[0]}

    def executed(self) -> int:
        return sum(int(node.ask("GET", "/load")["executed"]) for node in self.nodes.values())

    def close(self) -> None:
        self.cluster.close()
        self.nodes["server"].clean()


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronts]:
    made = Fronts(tmp_path_factory.mktemp("fronts"))
    yield made
    made.close()


@pytest.fixture(params=["server", "gateway"])
def front(request: pytest.FixtureRequest, fronts: Fronts) -> Served:
    """What listens on loopback for clients."""
    return fronts.nodes[request.param]


def head_of(method: str = "POST", path: str = "/execute", **headers: str) -> bytes:
    """A request's head; Host_Name becomes Host-Name."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


def answer_to(port: int, *pieces: bytes) -> tuple[int, bytes]:
    """Send, and read until the other side closes or nothing comes; the status (0: none), and everything."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    found = b""
    with contextlib.suppress(ConnectionError):
        while not complete(found) and (data := connection.recv(65536)):
            found += data
    return (int(found.split(b" ")[1]) if found.startswith(b"HTTP/1.1 ") else 0), found


def complete(found: bytes) -> bool:
    head, end, body = found.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), None)
    return bool(end) and length is not None and len(body) >= length


def post(port: int, path: str = "/execute", body: bytes = BODY, **headers: str) -> int:
    return answer_to(port, head_of("POST", path, Content_Length=str(len(body)), **headers), body)[0]


# -- web pages ------------------------------------------------------------------------------------------------------


def test_a_request_that_a_web_page_can_send_runs_nothing(front: Served, fronts: Fronts) -> None:
    before = fronts.executed()
    here = f"127.0.0.1:{front.port}"
    batch = json.dumps({"requests": [PROGRAM]}).encode()
    code = json.dumps({"code": "print(1)", "language": "python"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json", ""):
        for path, body in (("/execute", BODY), ("/batch", batch), ("/run_code", code)):
            given = {"Content_Type": kind} if kind else {}
            assert post(front.port, path, body, Host=here, **given) == 415, (kind, path)
            assert post(front.port, path, body, Host=here, Origin=EVIL, **given) in (403, 415), (kind, path)
    for origin in (
        EVIL,
        "null",
        f"http://127.0.0.1:{front.port + 1}",
        f"https://{here}",
        f"http://{here}.evil.example",
    ):
        assert post(front.port, Host=here, Origin=origin, Content_Type=JSON) == 403, origin
    assert fronts.executed() == before


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{}",
        "127.0.0.1.evil.example:{}",
        "localhost.evil.example",
        "10.1.2.3:{}",
        "[2001:db8::1]:{}",
        "0.0.0.0:{}",
        "127.0.0.1@evil.example",
    ],
)
def test_a_name_that_was_rebound_to_loopback_reaches_nothing(front: Served, fronts: Fronts, host: str) -> None:
    before, name = fronts.executed(), host.format(front.port)
    own = {"Host": name, "Origin": f"http://{name}"}
    assert post(front.port, Content_Type=JSON, **own) in (400, 403)
    for method, path in (("GET", "/sessions"), ("GET", "/health"), ("GET", "/gateway"), ("DELETE", "/sessions/s")):
        status, found = answer_to(front.port, head_of(method, path, Host=name))
        assert status in (400, 403) and b"sessions" not in found and b"isolation" not in found, (method, path)
    assert fronts.executed() == before


HOSTILE_PAGE = """<!doctype html><title>evil</title><script>
async function attack(url, body) {
  const results = [], json = {"Content-Type": "application/json"};
  for (const options of [{mode: "no-cors"}, {mode: "cors"}, {mode: "no-cors", headers: {"Content-Type": "text/plain"}},
                         {mode: "no-cors", headers: json}, {mode: "cors", headers: json}]) {
    try {
      const answer = await fetch(url + "/execute", {method: "POST", body: body, ...options});
      results.push(answer.status + answer.type);
    } catch (error) { results.push("refused"); }
  }
  results.push(String(navigator.sendBeacon(url + "/execute", body)));
  return results;
}
</script><body>"""


@needs_browser
def test_a_page_in_a_real_browser_runs_nothing(front: Served, fronts: Fronts, page: Page) -> None:
    before, refused = fronts.executed(), refusals(fronts)
    with another_origin(HOSTILE_PAGE) as address:
        page.go(address)
        results = page.run(f"attack('http://127.0.0.1:{front.port}', {json.dumps(json.dumps(PROGRAM))})")
    assert set(results[:5]) <= {"0opaque", "refused"}, results
    if front.facts["gateway"] is None:  # a gateway refuses by itself, and counts nothing
        wait_for("all of them to be refused", lambda: refusals(fronts) - refused >= 4)
    assert fronts.executed() == before


def refusals(fronts: Fronts) -> int:
    """Requests that the server itself has refused as a web page's."""
    lines = fronts.nodes["server"].ask("GET", "/metrics")["text"].splitlines()
    wanted = [line for line in lines if "requests_total" in line and ('code="403"' in line or 'code="415"' in line)]
    return sum(int(line.rpartition(" ")[2]) for line in wanted)


def test_a_preflight_is_answered_without_leave(front: Served) -> None:
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "content-type"}
    status, found = answer_to(
        front.port, head_of("OPTIONS", "/execute", Host=f"127.0.0.1:{front.port}", Origin=EVIL, **asked)
    )
    assert status >= 400 and b"access-control-allow" not in found.lower()


@pytest.mark.parametrize("kind", [JSON, "application/json; charset=utf-8", "Application/JSON"])
@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "LOCALHOST:{}", "[::1]:{}", "127.0.0.1", "localhost"])
def test_clients_of_this_machine_are_served_by_any_name_of_loopback(front: Served, host: str, kind: str) -> None:
    assert post(front.port, Host=host.format(front.port), Content_Type=kind) == 200
    own = f"http://{host.format(front.port).lower()}"
    assert post(front.port, Host=host.format(front.port), Origin=own, Content_Type=kind) == 200


async def test_the_clients_that_there_are_go_on_working(front: Served) -> None:
    """As NeMo-Skills' client (httpx), SandboxFusion's (requests), curl with its header, and our own two ask."""
    url = f"http://localhost:{front.port}"
    skills = front.ask("POST", "/execute", PROGRAM, {"Content-Type": JSON, "User-Agent": "python-httpx/0.27"})
    assert skills["stdout"] == "42\n"
    requests = pytest.importorskip("requests")
    fusion = requests.post(f"{url}/run_code", json={"code": "print(1)", "language": "python"}, timeout=PATIENCE_S)
    assert fusion.json()["run_result"]["stdout"] == "1\n"
    with Client(url) as client:
        assert client.execute("print(1)").stdout == "1\n" and client.execute("x = 1", session="sync").completed
        assert [result.stdout for _, result in client.batch(["print(3)"])] == ["3\n"] and client.delete_session("sync")
    async with AsyncClient(url) as other:
        assert (await other.execute("print(2)")).stdout == "2\n"
        assert [result.stdout async for _, result in other.batch(["print(4)"])] == ["4\n"]
    node = front.facts["listen_port"]
    address = "127.0.0.1" if front.facts["gateway"] is None else ""
    if address:  # between nodes, the token counts, and any name will do
        assert post(node, Host="node7.cluster.example", Content_Type=JSON, Authorization=f"Bearer {TOKEN}") == 200


# -- load without a token -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def between(fronts: Fronts) -> tuple[Served, int]:
    """A server, and its port between nodes."""
    return fronts.nodes["server"], int(fronts.nodes["server"].facts["listen_port"])


def peak_mb(served: Served) -> int:
    lines = Path(f"/proc/{served.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))


def processor_s(served: Served) -> float:
    fields = Path(f"/proc/{served.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def flood(connection: socket.socket, total: int, piece: bytes) -> int:
    """Send up to this many bytes, as long as they are taken; how many were."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < total:
            connection.sendall(piece)
            sent += len(piece)
    return sent


def test_an_endless_chunk_without_a_token_is_neither_kept_nor_searched(between: tuple[Served, int]) -> None:
    served, port = between
    before, worked = peak_mb(served), processor_s(served)
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(head_of(Host="x", Transfer_Encoding="chunked", Content_Type=JSON))
            status, _ = read_answer(connection)
            flood(connection, 96 << 20, b"a" * (1 << 20))
            assert status == 401
    assert peak_mb(served) - before < GROWTH_MB and processor_s(served) - worked < 20
    assert served.out("print(1)") == "1\n"


@pytest.mark.parametrize("tail", [b"a" * 2_000_000, b"5;" + b"x" * 2_000_000, b"\r\n", b"zz\r\n", b"5\r\nhelloXX"])
def test_a_chunk_whose_line_does_not_end_or_is_none_is_refused(fronts: Fronts, tail: bytes) -> None:
    for name, front in fronts.nodes.items():
        head = head_of(Host=f"127.0.0.1:{front.port}", Transfer_Encoding="chunked", Content_Type=JSON)
        assert answer_to(front.port, head, tail)[0] == 400, name


@pytest.mark.parametrize("lengths", AMBIGUOUS)
def test_a_request_whose_length_is_ambiguous_runs_nothing(front: Served, fronts: Fronts, lengths: bytes) -> None:
    before = fronts.executed()
    head = head_of(Host=f"127.0.0.1:{front.port}", Content_Type=JSON)[:-2]
    own = lengths.replace(b": 1\r", b": %d\r" % len(BODY)) + b"\r\n"
    for body in (BODY, b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)):
        assert answer_to(front.port, head + own, body)[0] == 400, own
    assert fronts.executed() == before


def test_a_body_in_chunks_however_they_are_cut_is_taken(front: Served) -> None:
    head = head_of(Host=f"127.0.0.1:{front.port}", Transfer_Encoding="chunked", Content_Type=JSON)
    chunks = b"".join(
        b"%x;ext=1\r\n%b\r\n" % (len(BODY[at : at + 7]), BODY[at : at + 7]) for at in range(0, len(BODY), 7)
    )
    whole = head + chunks + b"0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", front.port), timeout=PATIENCE_S) as connection:
        for at in range(0, len(whole), 11):
            connection.sendall(whole[at : at + 11])
        status, found = read_answer(connection)
    assert status == 200 and b"42" in found


def test_large_bodies_without_a_token_are_refused_before_they_are_read(between: tuple[Served, int]) -> None:
    served, port = between
    before = peak_mb(served)
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S)) for _ in range(20)]
        for number, connection in enumerate(many):
            token = {} if number % 2 else {"Authorization": "Bearer wrong"}
            connection.sendall(head_of(Host="x", Content_Type=JSON, Content_Length=str(60 << 20), **token))
        for connection in many:
            assert read_answer(connection)[0] == 401
            flood(connection, 16 << 20, b"a" * (1 << 20))
        assert peak_mb(served) - before < GROWTH_MB
    too_long = head_of(Host="x", Content_Type=JSON, Content_Length="9" * 30, Expect="100-continue")
    assert answer_to(port, too_long)[0] == 401  # not a word of what would be allowed


def test_a_refusal_reaches_a_client_that_sends_its_whole_body_first(between: tuple[Served, int]) -> None:
    served, port = between
    answer = served.ask("POST", "/execute", b" " * (24 << 20), {"Content-Type": JSON}, port)
    assert answer.status == 401 and "requires the token" in answer["error"]


@pytest.mark.parametrize("large", ["lines", "value", "path"])
def test_a_head_has_a_size_and_a_number_of_lines(between: tuple[Served, int], large: str) -> None:
    served, port = between
    head = {
        "lines": head_of(**{f"X{number}": "1" for number in range(2000)}),
        "value": head_of(X="a" * 200_000),
        "path": head_of(path="/" + "a" * 200_000),
    }[large]
    before, worked = peak_mb(served), processor_s(served)
    assert answer_to(port, head)[0] in (400, 401, 431)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        flood(connection, 32 << 20, b"X: " + b"a" * 65536)
        assert read_answer(connection)[0] in (0, 400, 431)
    assert peak_mb(served) - before < GROWTH_MB and processor_s(served) - worked < 20


def test_a_head_that_does_not_come_to_an_end_is_given_up(fronts: Fronts) -> None:
    """Nothing at all, a part of a head, and one that drips: at every endpoint."""
    ports = [int(fronts.nodes["server"].facts["listen_port"]), *(node.port for node in fronts.nodes.values())]
    with contextlib.ExitStack() as stack:
        opened: dict[socket.socket, bool] = {}
        for port in ports:
            for data, drips in (
                (b"", False),
                (b"POST /execute HTTP/1.1\r\nHost: 127", False),
                (b"GET / HTTP/1.1\r\n", True),
            ):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
                connection.sendall(data)
                opened[connection] = drips
        end = time.monotonic() + PATIENCE_S
        while opened and time.monotonic() < end:
            for connection in select.select(list(opened), [], [], 0.5)[0]:
                with contextlib.suppress(ConnectionError):
                    while connection.recv(65536):
                        pass
                del opened[connection]
            for connection, drips in list(opened.items()):
                if drips:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"X: 1\r\n")
        left = [connection.getpeername()[1] for connection in opened]
        assert not left, f"still open: {left} of {ports}"


def test_paths_of_refused_requests_are_no_labels_and_forge_no_lines(own: Callable[..., Served]) -> None:
    served = own(listen="127.0.0.1:0", token=TOKEN)
    port = served.facts["listen_port"]
    for number in range(200):
        assert answer_to(port, head_of("GET", f"/p{number}", Host="x"))[0] == 401
        answer_to(port, head_of("GET", f"/p{number}/q", Host="x"))
    answer_to(port, head_of("GET", '/a"}1\nmuster_forged_total{x="', Host="x"))
    answer_to(port, b'GET /b"}\t1\nmuster_forged_total{x="\t1\n HTTP/1.1\r\n\r\n')
    text = served.ask("GET", "/metrics")["text"]
    requests = [line for line in text.splitlines() if line.startswith("muster_sandbox_requests_total{")]
    assert 'path="other",code="401"' in "".join(requests) and len(requests) < 8, requests
    assert "forged" not in text and "/p1" not in text


def test_connections_that_say_nothing_do_not_keep_others_out(own: Callable[..., Served]) -> None:
    """More than the server has files for: strangers make room for whoever comes, and programs run."""
    served = own(listen="127.0.0.1:0", token=TOKEN, sessions_max=8)
    port = served.facts["listen_port"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 8000:
        pytest.skip("too few open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (8000 if hard == resource.RLIM_INFINITY else hard, hard))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(5000):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
            token = {"Authorization": f"Bearer {TOKEN}", "Content-Type": JSON}
            for _ in range(5):
                assert served.ask("POST", "/execute", PROGRAM, token, port)["stdout"] == "42\n"
            assert served.out("print(1)") == "1\n"
            assert len(os.listdir(f"/proc/{served.process.pid}/fd")) < 4500
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_for("the strangers to be gone", lambda: len(os.listdir(f"/proc/{served.process.pid}/fd")) < 200)
    assert "Too many open files" not in served.said() and "Traceback" not in served.said()


def test_a_client_that_never_reads_its_answers_is_given_no_more_to_keep(between: tuple[Served, int]) -> None:
    """Requests sent ahead of their answers wait in the client's own buffers."""
    served, _ = between
    before = peak_mb(served)
    slow = json.dumps({**PROGRAM, "generated_code": "import time; time.sleep(3)"}).encode()
    request = head_of(Host="localhost", Content_Type=JSON, Content_Length=str(len(slow))) + slow
    with socket.create_connection(("127.0.0.1", served.port), timeout=2) as connection:
        connection.sendall(request)
        flood(connection, 80 << 20, head_of("GET", "/health", Host="localhost") * 10_000)
    assert peak_mb(served) - before < GROWTH_MB
    assert served.out("print(1)") == "1\n"
