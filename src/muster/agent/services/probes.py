"""Readiness probes of services. A probe returns None if the service is ready, else a reason to show at the deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Awaitable, Callable
from typing import Any, Optional

from muster.agent.ray.settings import join_address
from muster.process.log_reader import LogReader, log_end

Probe = Callable[[], Awaitable[Optional[str]]]

PROBE_TIMEOUT_S = 5.0  # for one connection, response or command
MAX_READ_BYTES = 1 << 20  # of a response, or of a log in one poll


async def running() -> str | None:
    """Probe a service that is ready as soon as it runs."""
    return None


def tcp(address: str, port: int) -> Probe:
    """Return a probe that succeeds when the port accepts connections."""

    async def probe() -> str | None:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), PROBE_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError) as error:
            return f"nothing accepts connections at {join_address(address, port)}: {_describe(error)}"
        writer.close()
        return None

    return probe


def http(address: str, port: int, path: str, check_body: Callable[[bytes], str | None] = lambda body: None) -> Probe:
    """Return a probe that succeeds with a status below 400 and a body in which `check_body` finds no fault."""

    async def probe() -> str | None:
        where = f"GET http://{join_address(address, port)}{path}"
        try:
            status, found = await asyncio.wait_for(_get(address, port, path), PROBE_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError) as error:
            return f"{where}: {_describe(error)}"
        if status is None:
            return f"{where}: the server does not speak HTTP"
        why = None if status < 400 else f"status {status}"
        why = why or check_body(found)
        return None if why is None else f"{where}: {why}"

    return probe


async def _get(address: str, port: int, path: str, token: str | None = None) -> tuple[int | None, bytes]:
    """Send a GET request and return status and body. HTTP/1.0: the response ends with the connection."""
    reader, writer = await asyncio.open_connection(address, port)
    try:
        host = join_address(address, port)
        secret = f"Authorization: Bearer {token}\r\n" if token is not None else ""
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n{secret}Connection: close\r\n\r\n".encode())
        response = b""
        while len(response) < MAX_READ_BYTES and (data := await reader.read(65536)):
            response += data
    finally:
        writer.close()
    head, _, body = response.partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    return (int(match[1]) if match else None), body


async def get_record(address: str, port: int, path: str, token: str | None = None) -> dict[str, Any] | None:
    """GET a JSON object; return None on any failure."""
    try:
        status, body = await asyncio.wait_for(_get(address, port, path, token), PROBE_TIMEOUT_S)
        found = json.loads(body) if status == 200 else None
    except (OSError, ValueError, asyncio.TimeoutError):
        return None
    return found if isinstance(found, dict) else None


def check_healthy(body: bytes) -> str | None:
    """Check the body of a sandbox's /health response."""
    with contextlib.suppress(ValueError, AttributeError):
        if json.loads(body).get("status") == "healthy":
            return None
    return "the sandbox does not report itself as healthy"


def command(run: Callable[[], Awaitable[int]], shown: str) -> Probe:
    """Return a probe that succeeds when the command exits with 0; `shown` is the command without secrets."""

    async def probe() -> str | None:
        code = await run()
        return None if code == 0 else f"{shown} exited with {code}"

    return probe


def file(path: str) -> Probe:
    """Return a probe that succeeds when the file exists and has changed since this call."""
    before = _stat(path)

    async def probe() -> str | None:
        found = await asyncio.get_running_loop().run_in_executor(None, _stat, path)
        if found is None:
            return f"{path} does not exist"
        return f"{path} is older than this start of the service" if found == before else None

    return probe


def log(path: str, pattern: str) -> Probe:
    """Return a probe that succeeds when a line written after this call matches the pattern."""
    matcher = LogMatch(path, re.compile(pattern))

    async def probe() -> str | None:
        found = await asyncio.get_running_loop().run_in_executor(None, matcher.poll)
        return None if found else f"no line of its log matches {pattern!r}"

    return probe


class LogMatch:
    """Searches a log from its present end on."""

    def __init__(self, path: str, pattern: re.Pattern[str]) -> None:
        end = log_end(path)
        self._reader, self._pattern = LogReader(path, end[0] if end is not None else 0), pattern
        self._rest = b""

    def poll(self) -> bool:
        """Return whether a line that was written since the last call matches."""
        data = self._reader.read(MAX_READ_BYTES)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-MAX_READ_BYTES:]
        return any(self._pattern.search(line.decode(errors="replace")) for line in [*lines, self._rest])


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
        return found.st_ino, found.st_size, found.st_mtime_ns
    except OSError:
        return None


def _describe(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"no response within {PROBE_TIMEOUT_S:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
