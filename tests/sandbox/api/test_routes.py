"""The endpoints: batches, refusals by the head, counted requests, unknown paths."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.running import wait_for
from tests.sandbox.results import ended

from muster.sandbox.api.routes import Routes
from muster.sandbox.engine.admission_queue import BATCH, PROGRAM, Overloaded
from muster.sandbox.engine.isolation import FLOOR, Level
from muster.sandbox.engine.languages import Languages
from muster.sandbox.engine.metrics import HOST, Metrics
from muster.sandbox.engine.sessions import SessionLost
from muster.sandbox.engine.workspaces import BadName
from muster.sandbox.http.codec import HttpRequest, HttpResponse, RequestHead
from muster.sandbox.models import CellResult, Program, ProgramResult
from muster.sandbox.output import Captured
from muster.sandbox.settings import SandboxSettings

if TYPE_CHECKING:
    from tests.sandbox.serving import Served


def test_a_batch_streams_results_as_they_end(strong: Served) -> None:
    requests = [
        {"generated_code": "import time; time.sleep(3); print('slow')", "timeout": 30},
        *({"generated_code": f"print({number})", "timeout": 30} for number in range(1, 20)),
        {"generated_code": "echo shell", "timeout": 30, "language": "shell"},
        {"generated_code": "1", "timeout": -1},
        "nonsense",
        {"generated_code": "1", "timeout": 1, "language": "ipython"},
    ]
    connection = http.client.HTTPConnection("127.0.0.1", strong.port, timeout=90)
    connection.request("POST", "/batch", json.dumps({"requests": requests}), {"Content-Type": "application/json"})
    lines = [json.loads(line) for line in connection.getresponse() if line.strip()]
    connection.close()
    assert sorted(line["index"] for line in lines) == list(range(len(requests)))
    assert lines[0]["index"] != 0  # the slow one did not hold the others up
    by_index = {line["index"]: line for line in lines}
    assert by_index[0]["stdout"] == "slow\n" and by_index[20]["stdout"] == "shell\n"
    assert [by_index[number]["stdout"] for number in range(1, 20)] == [f"{number}\n" for number in range(1, 20)]
    assert all(by_index[number]["process_status"] == "error" for number in (21, 22, 23))
    assert "cannot use sessions" in by_index[23]["error"]


def test_a_batch_without_a_reader_is_stopped(strong: Served) -> None:
    requests = [{"generated_code": "import time; time.sleep(600)", "timeout": 900}] * 50
    connection = http.client.HTTPConnection("127.0.0.1", strong.port, timeout=90)
    connection.request("POST", "/batch", json.dumps({"requests": requests}), {"Content-Type": "application/json"})
    wait_for("the slots to be taken", lambda: strong.ask("GET", "/load")["running"] == 4)
    connection.close()
    wait_for("the slots to be free", lambda: strong.ask("GET", "/load")["running"] == 0)


# -- without a sandbox ------------------------------------------------------------------------------------------------


class FakeEngine:
    """The parts of an engine that the endpoints use."""

    def __init__(self) -> None:
        self.settings = SandboxSettings(workers_max=4, workers_min=1)
        self.metrics, self.languages = Metrics(), Languages(os.environ["PATH"])
        self.admission = SimpleNamespace(is_closed=False, retry_after_s=1)
        self.pool = SimpleNamespace(
            zygote=SimpleNamespace(facts={"preloaded": ["json"]}), level=Level(FLOOR, (), ()), session_backend="repl"
        )
        self.sessions = SimpleNamespace(delete=lambda name: name == "a b", listed=lambda owner: {"s": {}}, memory=7)
        self.workspaces = SimpleNamespace(remove=lambda name: name == "w")
        self.results: list[ProgramResult] = [ended()]
        self.error: Exception | None = None
        self.ran: list[tuple[Program, int]] = []

    async def run(self, work: Program, kind: int) -> list[ProgramResult]:
        if self.error is not None:
            raise self.error
        self.ran.append((work, kind))
        return list(self.results)

    async def cell(self, *args: object) -> CellResult:
        if self.error is not None:
            raise self.error
        return CellResult("completed", Captured(b"5\n"), Captured(), True, 0.1)

    def load(self) -> dict[str, Any]:
        names = ("slots", "running", "queued", "workers", "sessions", "workspaces", "uptime_s")
        return dict.fromkeys(names, 1)

    def counters(self) -> dict[str, float]:
        return {}


@pytest.fixture
def engine() -> Any:
    return FakeEngine()


async def ask(engine: Any, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await Routes(engine, None)(HttpRequest(method, path, named, data))


PROGRAM_BODY = {"generated_code": "x", "timeout": 5, "language": "python"}


async def test_a_program_is_run_with_its_limits_and_its_usage_reported(engine: Any) -> None:
    response = await ask(engine, "POST", "/execute", {**PROGRAM_BODY, "memory_mb": 9, "std_input": "i", "report": True})
    ((work, kind),) = engine.ran
    assert (kind, work.within, work.steps[0].job["limits"], work.steps[0].stdin) == (PROGRAM, 5, {"memory_mb": 9}, b"i")
    assert response.status == 200 and response.headers["X-Muster-Node"] == HOST
    assert json.loads(response.headers["X-Muster-Usage"]) == response.content["usage"]
    assert (response.content["exit_code"], response.content["reason"]) == (0, None)


async def test_a_cell_has_no_usage(engine: Any) -> None:
    response = await ask(engine, "POST", "/execute", {**PROGRAM_BODY, "language": "ipython"}, x_session_id="s")
    assert response.content["stdout"] == "5\n" and set(response.headers) == {"X-Muster-Node"}


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Overloaded("full"), 503, "overloaded"),
        (SessionLost("gone"), 409, "session_lost"),
        (BadName("no name"), 400, None),
        (RuntimeError("a defect"), 500, None),
    ],
)
async def test_every_failure_has_the_keys_of_an_answer(
    engine: Any, error: Exception, status: int, reason: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.error = error
    response = await ask(engine, "POST", "/execute", PROGRAM_BODY)
    assert (response.status, response.content.get("reason")) == (status, reason)
    assert {"process_status", "stdout", "stderr", "error"} <= set(response.content)
    assert ("RuntimeError: a defect" in capsys.readouterr().err) == (status == 500)
    assert "a defect" not in str(response.content)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/execute", 405),
        ("DELETE", "/health", 405),
        ("DELETE", "/sessions/a%20b", 200),
        ("DELETE", "/sessions/other", 404),
        ("DELETE", "/workspaces/w", 200),
        ("DELETE", "/workspaces/v", 404),
        ("GET", "/load?x=1", 200),
        ("GET", "/sessions", 200),
        ("GET", "/metrics", 200),
    ],
)
async def test_paths_and_methods(engine: Any, method: str, path: str, status: int) -> None:
    assert (await ask(engine, method, path)).status == status


async def test_requests_are_counted_by_endpoint_and_other_paths_together(engine: Any) -> None:
    for path in ("/load", "/load?x", "/sessions/a", "/sessions/b", "/a", "/b/c"):
        await ask(engine, "GET", path)
    assert engine.metrics.requests == {("/load", 200): 2, ("/sessions", 404): 2, ("other", 404): 2}


async def test_a_server_that_stops_or_has_no_zygote_is_unhealthy(engine: Any) -> None:
    response = await ask(engine, "GET", "/health")
    assert (response.status, response.content["status"]) == (200, "healthy")
    assert response.content["preloaded"] == ["json"] and response.content["isolation"]["level"] == "floor"
    engine.pool.zygote = None
    assert (await ask(engine, "GET", "/health")).status == 503


def head(method: str = "POST", path: str = "/execute", **headers: str) -> RequestHead:
    return RequestHead(method, path, {name.replace("_", "-"): value for name, value in headers.items()})


def test_requests_are_refused_by_their_head(engine: Any) -> None:
    routes, json_type = Routes(engine, None), "application/json"
    assert routes.refusal(head(content_type=json_type)) is None and routes.refusal(head("GET")) is None
    for refused, status in (
        (head(content_type="text/plain"), 415),
        (head(content_type=json_type, host="evil.example"), 403),
        (head("GET", origin="http://evil.example"), 403),
    ):
        response = routes.refusal(refused)
        assert response is not None and response.status == status
        assert {"process_status", "stdout", "stderr"} <= set(response.content)
    refused_code = routes.refusal(head(path="/run_code"))
    assert refused_code is not None and refused_code.content["status"] == "SandboxError"
    assert sum(engine.metrics.requests.values()) == 4


def test_with_a_token_any_host_may_ask_that_has_it(engine: Any) -> None:
    routes = Routes(engine, "t0p")
    for given in ("", "Bearer ", "Bearer t0", "bearer t0p", "t0p", "Bearer t0p "):
        response = routes.refusal(head("GET", authorization=given, host="evil.example"))
        assert response is not None and response.status == 401, given
    assert routes.refusal(head("GET", authorization="Bearer t0p", host="n7.example")) is None


async def test_the_cluster_is_asked_where_there_is_one(engine: Any) -> None:
    assert (await ask(engine, "GET", "/cluster/load")).content == {"nodes": {HOST: engine.load()}}

    async def overview(path: str, headers: dict[str, str]) -> dict[str, Any]:
        assert path == "/sessions"
        return {"n1": {"sessions": {"a": {}}}, "n2": {"sessions": {"b": {}}}, "n3": {"error": "lost"}}

    routes = Routes(engine, None, overview, lambda: {"problem": "x" * 1000, "members": 3})
    response = await routes(HttpRequest("GET", "/cluster/sessions", {}, b""))
    assert response.content == {"sessions": {"a": {}, "b": {}}, "backend": "ipython", "missing": {"n3": "lost"}}
    load = (await routes(HttpRequest("GET", "/load", {}, b""))).content
    assert load["gateway_problem"] == "x" * 500
    assert "muster_sandbox_gateway_degraded 1" in (await routes(HttpRequest("GET", "/metrics", {}, b""))).content


async def test_a_batch_yields_a_line_for_each_program(engine: Any) -> None:
    response = await ask(engine, "POST", "/batch", {"requests": [PROGRAM_BODY, "nonsense", {"language": "ipython"}]})
    lines = {line["index"]: line for line in [json.loads(line) async for line in response.content]}
    assert lines[0]["process_status"] == "completed" and lines[0]["usage"]["wall_s"] == 1.0
    assert "must be a JSON object" in lines[1]["error"] and "cannot use sessions" in lines[2]["error"]
    assert [kind for _, kind in engine.ran] == [BATCH]
    for body in (b"{", [], {"requests": 5}):
        assert (await ask(engine, "POST", "/batch", body)).status == 400


async def test_a_batch_in_which_nothing_ends_yields_empty_lines(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.sandbox.api.routes.EMPTY_LINE_S", 0.01)
    finish = asyncio.Event()

    async def wait(work: Program, kind: int) -> list[ProgramResult]:
        await finish.wait()
        return [ended()]

    engine.run = wait
    response = await ask(engine, "POST", "/batch", {"requests": [PROGRAM_BODY]})
    assert await anext(response.content) == b"\n"
    finish.set()
    lines = [line async for line in response.content if line != b"\n"]
    assert len(lines) == 1 and json.loads(lines[0])["index"] == 0
