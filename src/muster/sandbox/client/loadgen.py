"""How fast is a sandbox? Requests from a number of connections at once, timed one by one."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Callable
from urllib.parse import urlsplit

from muster.sandbox.http import client, codec
from muster.sandbox.http.client import Streams

CONNECT_S = 10.0
Body = Callable[[int], "tuple[dict[str, Any], dict[str, str]]"]  # the number of a request -> its body and headers


@dataclass(frozen=True)
class Measured:
    """What a number of requests took."""

    requests: int
    failures: int
    seconds: float
    p50_ms: float
    p99_ms: float
    example: str = ""  # of a failure

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
    """The same program each time."""
    return lambda number: ({"generated_code": code, "timeout": 60, "language": language, **more}, {})


def cell(code: str, session: Callable[[int], str]) -> Body:
    """A cell, of the session that the request's number chooses."""
    body = {"generated_code": code, "timeout": 60, "language": "ipython"}
    return lambda number: (body, {"X-Session-ID": session(number)})


async def load(url: str, clients: int, requests: int, body: Body) -> Measured:
    """Send this many, each client one after the other; any answer but `completed` is a failure."""
    numbers = iter(range(requests))
    times: list[float] = []
    failures: list[str] = []

    async def requests_in_turn() -> None:
        found: Streams | None = None
        for number in numbers:
            sent, headers = body(number)
            asked = {"Host": urlsplit(url).netloc, "Content-Type": "application/json", **headers}
            data = codec.request_bytes("POST", "/execute", asked, json.dumps(sent).encode())
            started = time.perf_counter()
            reader, writer = found or await client.connect(url, CONNECT_S)
            writer.write(data)
            head, answer = await client.read_response(reader)
            times.append(time.perf_counter() - started)
            found = reader, writer
            if head.is_last:  # as a gateway does
                writer.close()
                found = None
            if b'"process_status": "completed"' not in answer:
                failures.append(answer[:300].decode("utf-8", "replace"))
        if found is not None:
            found[1].close()

    started = time.perf_counter()
    await asyncio.gather(*(requests_in_turn() for _ in range(min(clients, requests))))
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
