"""A load generator: requests over a number of connections, each timed."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Callable
from urllib.parse import urlsplit

from muster.sandbox.http import client, codec
from muster.sandbox.http.client import Streams

CONNECT_TIMEOUT_S = 10.0
Body = Callable[[int], "tuple[dict[str, Any], dict[str, str]]"]  # index of a request -> its body and headers


@dataclass(frozen=True)
class Measured:
    """Rate and latency of a number of requests."""

    requests: int
    failures: int
    seconds: float
    p50_ms: float
    p99_ms: float
    example: str = ""  # response of a failure

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "failures": self.failures,
            "per_second": round(self.rate, 1),
            "p50_ms": round(self.p50_ms, 2),
            "p99_ms": round(self.p99_ms, 2),
            "seconds": round(self.seconds, 3),
        }


def program(code: str, language: str = "python", **more: Any) -> Body:
    """Send the same program each time."""
    return lambda number: ({"generated_code": code, "timeout": 60, "language": language, **more}, {})


def cell(code: str, session: Callable[[int], str]) -> Body:
    """Send a cell to the session that `session` returns for the request's index."""
    body = {"generated_code": code, "timeout": 60, "language": "ipython"}
    return lambda number: (body, {"X-Session-ID": session(number)})


async def load(url: str, clients: int, requests: int, body: Body) -> Measured:
    """Send this many requests; each client waits for its response. Any status but `completed` is a failure."""
    numbers = iter(range(requests))
    times: list[float] = []
    failures: list[str] = []

    async def run_client() -> None:
        streams: Streams | None = None
        for number in numbers:
            fields, headers = body(number)
            head_lines = {"Host": urlsplit(url).netloc, "Content-Type": "application/json", **headers}
            data = codec.request_bytes("POST", "/execute", head_lines, json.dumps(fields).encode())
            started = time.perf_counter()
            reader, writer = streams or await client.connect(url, CONNECT_TIMEOUT_S)
            writer.write(data)
            head, answer = await client.read_response(reader)
            times.append(time.perf_counter() - started)
            streams = reader, writer
            if head.is_last:
                writer.close()
                streams = None
            if b'"process_status": "completed"' not in answer:
                failures.append(answer[:300].decode("utf-8", "replace"))
        if streams is not None:
            streams[1].close()

    started = time.perf_counter()
    await asyncio.gather(*(run_client() for _ in range(min(clients, requests))))
    took = time.perf_counter() - started
    times.sort()
    return Measured(
        requests,
        len(failures),
        took,
        1e3 * times[len(times) // 2],
        1e3 * times[int(len(times) * 0.99)],
        failures[0] if failures else "",
    )
