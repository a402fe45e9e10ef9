"""The load generator: the requests that it sends, and what it measures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.sandbox.client.loadgen import Measured, cell, load, program
from muster.sandbox.http import codec
from muster.sandbox.http.codec import HttpResponse


class Endpoint:
    """Answers requests; every third one fails, and every fourth ends its connection."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while data := await reader.read(1):
            head, _ = codec.parse_request_head((data + await reader.readuntil(codec.HEAD_END))[: -len(codec.HEAD_END)])
            body = await reader.readexactly(int(head.headers["content-length"]))
            self.requests.append((head.headers, json.loads(body)))
            number = len(self.requests)
            status = "error" if number % 3 == 0 else "completed"
            answer = HttpResponse(200, {"process_status": status, "number": number})
            writer.write(codec.response_bytes(answer, is_last=number % 4 == 0))
            if number % 4 == 0:
                break
        writer.close()


@pytest.fixture
async def endpoint() -> AsyncIterator[tuple[str, Endpoint]]:
    made = Endpoint()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", made
    server.close()


async def test_requests_are_sent_and_failures_counted(endpoint: tuple[str, Endpoint]) -> None:
    url, served = endpoint
    measured = await load(url, clients=1, requests=10, body=program("print(1)", std_input="i"))
    assert (measured.requests, measured.failures, len(served.requests)) == (10, 3, 10)
    assert json.loads(measured.example) == {"process_status": "error", "number": 3}
    assert served.connections == 3  # a connection is used until the server ends it
    assert 0 < measured.p50_ms <= measured.p99_ms <= 1e3 * measured.seconds
    fields = {"generated_code": "print(1)", "timeout": 60, "language": "python", "std_input": "i"}
    assert all(body == fields for _, body in served.requests)


async def test_no_more_clients_than_requests_are_used(endpoint: tuple[str, Endpoint]) -> None:
    url, served = endpoint
    await load(url, clients=50, requests=2, body=program("print(1)"))
    assert served.connections == 2


async def test_cells_go_to_their_sessions(endpoint: tuple[str, Endpoint]) -> None:
    url, served = endpoint
    await load(url, clients=1, requests=3, body=cell("x", lambda number: f"s{number}"))
    assert [headers["x-session-id"] for headers, _ in served.requests] == ["s0", "s1", "s2"]
    assert {body["language"] for _, body in served.requests} == {"ipython"}


def test_a_measurement_has_a_rate() -> None:
    measured = Measured(100, 1, 4.0, 1.234, 5.678)
    assert measured.rate == 25.0
    assert measured.to_json() == {
        "requests": 100,
        "failures": 1,
        "per_second": 25.0,
        "p50_ms": 1.23,
        "p99_ms": 5.68,
        "seconds": 4.0,
    }
