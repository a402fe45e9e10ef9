"""The blocking client: endpoints of a run, sessions at the same endpoint for every client."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.sandbox.client.endpoint import COMPLETED, Endpoint
from tests.sandbox.serving import url

from muster.sandbox import Client, SandboxUnavailable
from muster.sandbox.client.sync_client import _collect, resolve_endpoints
from muster.sandbox.hash_ring import ranked
from muster.sandbox.http.codec import HttpResponse, RequestHead

if TYPE_CHECKING:
    from tests.sandbox.serving import Served


def test_every_client_finds_a_session_at_the_same_endpoint(strong: Served, servers: Callable[[str], Served]) -> None:
    urls = [url(strong), url(servers("user"))]
    names = [strong.new_session() for _ in range(8)]
    with Client(urls) as first, Client(urls[::-1]) as second:
        for number, name in enumerate(names):
            first.execute(f"x = {number}", session=name)
        assert [second.execute("x", session=name).stdout for name in names] == [f"{n}\n" for n in range(8)]
        assert {ranked(name, urls)[0] for name in names} == set(urls)  # and they are spread
        for name in names:
            second.delete_session(name)


def test_endpoints_come_from_the_environment_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SERVICE_SANDBOX_URLS", "http://a:1,http://b:2")
    assert resolve_endpoints(None) == ["http://a:1", "http://b:2"]
    monkeypatch.delenv("MUSTER_SERVICE_SANDBOX_URLS")
    assert resolve_endpoints(None) == ["http://127.0.0.1:6000"]
    assert os.environ.get("MUSTER_SERVICE_SANDBOX_URLS") is None


def test_one_connection_serves_all_requests_of_a_thread(endpoints: Callable[..., Endpoint]) -> None:
    endpoint = endpoints()
    with Client(endpoint.url, token="t0p") as client:
        for number in range(3):
            client.execute(f"print({number})")
    assert endpoint.codes == ["print(0)", "print(1)", "print(2)"] and endpoint.connections == 1
    assert {head.headers["authorization"] for head, _ in endpoint.requests} == {"Bearer t0p"}


def test_a_request_that_was_refused_for_load_is_sent_again(endpoints: Callable[..., Endpoint]) -> None:
    answers = [HttpResponse(503, {"error": "overloaded"})] * 2 + [HttpResponse(200, {**COMPLETED, "stdout": "1"})]
    endpoint = endpoints(lambda head, body: answers.pop(0))
    with Client(endpoint.url) as client:
        assert client.execute("print(1)").stdout == "1"
    assert endpoint.codes == ["print(1)"] * 3


def test_a_busy_session_is_not_created_at_another_endpoint(endpoints: Callable[..., Endpoint]) -> None:
    both = [endpoints(lambda head, body: HttpResponse(503, {"error": "busy"})) for _ in range(2)]
    with (
        Client([one.url for one in both], wait_s=0.5) as client,
        pytest.raises(SandboxUnavailable, match=r"within 0\.5 s: busy"),
    ):
        client.execute("1", session="s")
    assert sorted(bool(one.requests) for one in both) == [False, True]


def test_a_lost_session_is_deleted_and_its_cells_run_again(endpoints: Callable[..., Endpoint]) -> None:
    lost = [False]

    def respond(head: RequestHead, body: object) -> HttpResponse:
        if lost[0] and "x-session-must-exist" in head.headers:
            return HttpResponse(409, {"error": "gone"})
        return HttpResponse(200, COMPLETED)

    endpoint = endpoints(respond)
    with Client(endpoint.url) as client:
        client.execute("x = 1", session="a b")
        lost[0] = True
        client.execute("x", session="a b")
        assert endpoint.codes == ["x = 1", "x", "x = 1", "x"]
        deleted = [head.path for head, _ in endpoint.requests if head.method == "DELETE"]
        assert deleted == ["/sessions/a%20b"]


def test_health_is_asked_of_an_endpoint(endpoints: Callable[..., Endpoint]) -> None:
    first, second = (endpoints(lambda head, body, n=n: HttpResponse(200, {"path": head.path, "n": n})) for n in (1, 2))
    with Client([first.url, second.url]) as client:
        assert client.health() == {"path": "/health", "n": 1}
        assert client.health(second.url) == {"path": "/health", "n": 2}


def test_results_of_a_batch_end_with_an_error_if_all_streams_end_before() -> None:
    results: queue.Queue[object] = queue.Queue()
    for item in ((0, "first"), None, ValueError("why"), None):
        results.put(item)
    collected = _collect(results, 2, 3)
    assert next(collected) == (0, "first")
    with pytest.raises(SandboxUnavailable, match="no endpoint accepted 2 programs of the batch: why"):
        next(collected)


def test_an_endpoint_is_given_as_text_or_as_a_list() -> None:
    assert resolve_endpoints("http://a:1") == ["http://a:1"]
    assert resolve_endpoints(("http://a:1", "http://b:1")) == ["http://a:1", "http://b:1"]
