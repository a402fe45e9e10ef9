"""The client for asyncio: connections, sessions in order, retries, and batches that are left early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.sandbox.client.endpoint import COMPLETED, Endpoint

from muster.sandbox import AsyncClient, SandboxLost, SandboxUnavailable
from muster.sandbox.http.codec import HttpResponse, RequestHead

Endpoints = Callable[..., Endpoint]


async def test_a_connection_is_used_again_and_more_are_opened_for_requests_at_the_same_time(
    endpoints: Endpoints,
) -> None:
    both = threading.Barrier(2)

    def respond(head: RequestHead, body: object) -> HttpResponse:
        if body == {"generated_code": "both", "timeout": 30, "language": "python"}:
            both.wait(120)
        return HttpResponse(200, COMPLETED)

    endpoint = endpoints(respond)
    async with AsyncClient(endpoint.url, token="t0p") as client:
        for _ in range(3):
            await client.execute("one")
        assert endpoint.connections == 1
        await asyncio.gather(client.execute("both"), client.execute("both"))
        assert endpoint.connections == 2
    assert {head.headers["authorization"] for head, _ in endpoint.requests} == {"Bearer t0p"}


async def test_cells_of_a_session_are_sent_one_after_the_other(endpoints: Endpoints) -> None:
    endpoint = endpoints()
    async with AsyncClient(endpoint.url) as client:
        await asyncio.gather(*(client.execute(str(number), session="s") for number in range(5)))
    assert endpoint.codes == [str(number) for number in range(5)]
    assert endpoint.connections == 1  # requests at the same time would have more
    must_exist = ["x-session-must-exist" in head.headers for head, _ in endpoint.requests]
    assert must_exist == [False, True, True, True, True]


async def test_a_request_that_was_refused_for_load_is_sent_again_and_given_up_in_time(endpoints: Endpoints) -> None:
    answers = [HttpResponse(503, {"error": "overloaded"}), HttpResponse(200, {**COMPLETED, "stdout": "1"})]
    endpoint = endpoints(lambda head, body: answers.pop(0))
    async with AsyncClient(endpoint.url) as client:
        assert (await client.execute("print(1)")).stdout == "1"
    busy = endpoints(lambda head, body: HttpResponse(503, {"error": "busy"}))
    async with AsyncClient(busy.url, wait_s=0.2) as client:
        with pytest.raises(SandboxUnavailable, match=r"within 0\.2 s: busy"):
            await client.execute("1")


async def test_a_response_that_does_not_come_is_lost(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.sandbox.client.retry_rules.RESPONSE_MARGIN_S", 0.0)
    answered = threading.Event()

    def respond(head: RequestHead, body: object) -> HttpResponse:
        answered.wait(120)
        return HttpResponse(200, COMPLETED)

    endpoint = endpoints(respond)
    try:
        async with AsyncClient(endpoint.url) as client:
            with pytest.raises(SandboxLost, match="TimeoutError"):
                await client.execute("1", timeout=0.1)
    finally:
        answered.set()


async def test_a_cancelled_request_closes_its_connection(endpoints: Endpoints) -> None:
    begun, answered = threading.Event(), threading.Event()

    def respond(head: RequestHead, body: object) -> HttpResponse:
        begun.set()
        answered.wait(120)
        return HttpResponse(200, {**COMPLETED, "stdout": str(body)})

    endpoint = endpoints(respond)
    async with AsyncClient(endpoint.url) as client:
        cancelled = asyncio.ensure_future(client.execute("first"))
        assert await asyncio.to_thread(begun.wait, 120)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        answered.set()
        assert "second" in (await client.execute("second")).stdout  # not the response to the first
    assert endpoint.connections == 2
