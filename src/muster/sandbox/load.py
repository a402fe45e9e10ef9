"""How fast is a sandbox? Requests from a number of connections at once, timed one by one."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Callable
from urllib.parse import urlsplit

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
            "requests": self.requests, "failures": self.failures, "per_second": round(self.rate, 1),
            "p50_ms": round(self.p50_ms, 2), "p99_ms": round(self.p99_ms, 2), "seconds": round(self.seconds, 3),
        }  # fmt: skip


def program(code: str, language: str = "python", **more: Any) -> Body:
    """The same program each time."""
    return lambda number: ({"generated_code": code, "timeout": 60, "language": language, **more}, {})


def cell(code: str, session: Callable[[int], str]) -> Body:
    """A cell, of the session that the request's number chooses."""
    body = {"generated_code": code, "timeout": 60, "language": "ipython"}
    return lambda number: (body, {"X-Session-ID": session(number)})


async def load(url: str, clients: int, requests: int, body: Body) -> Measured:
    """Send this many, each client one after the other; any answer but `completed` is a failure."""
    parts = urlsplit(url)
    numbers = iter(range(requests))
    times: list[float] = []
    failures: list[str] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=64 << 20)
        for number in numbers:
            data = _request(*body(number))
            started = time.perf_counter()
            writer.write(data)
            answer = await _answer(reader)
            times.append(time.perf_counter() - started)
            if b'"process_status": "completed"' not in answer:
                failures.append(answer[:300].decode("utf-8", "replace"))
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(min(clients, requests))))
    took = time.perf_counter() - started
    times.sort()
    return Measured(
        requests, len(failures), took, 1e3 * times[len(times) // 2], 1e3 * times[int(len(times) * 0.99)],
        failures[0] if failures else "",
    )  # fmt: skip


def _request(body: dict[str, Any], headers: dict[str, str]) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"POST /execute HTTP/1.1\r\nHost: sandbox\r\n{''.join(lines)}Content-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    where = head.index(b"Content-Length: ") + 16
    return await reader.readexactly(int(head[where : head.index(b"\r\n", where)]))
