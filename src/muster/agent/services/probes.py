"""Is a service ready? Each probe answers None, or why not: in words that help whoever reads them at the deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Awaitable, Callable
from typing import Any, Optional

from muster.agent.ray.settings import join_address

Probe = Callable[[], Awaitable[Optional[str]]]

ANSWER_S = 5.0  # for one answer
MOST_BYTES = 1 << 20  # of an answer, or of a log at one look


async def running() -> str | None:
    """Of a service that is ready as soon as it runs."""
    return None


def tcp(address: str, port: int) -> Probe:
    """Something accepts connections there."""

    async def probe() -> str | None:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), ANSWER_S)
        except (OSError, asyncio.TimeoutError) as error:
            return f"nothing accepts connections at {join_address(address, port)}: {_words(error)}"
        writer.close()
        return None

    return probe


def http(address: str, port: int, path: str, body: Callable[[bytes], str | None] = lambda body: None) -> Probe:
    """An answer below 400, with a body that will do."""

    async def probe() -> str | None:
        where = f"GET http://{join_address(address, port)}{path}"
        try:
            status, found = await asyncio.wait_for(_get(address, port, path), ANSWER_S)
        except (OSError, asyncio.TimeoutError) as error:
            return f"{where}: {_words(error)}"
        if status is None:
            return f"{where}: what answers does not speak HTTP"
        why = None if status < 400 else f"status {status}"
        why = why or body(found)
        return None if why is None else f"{where}: {why}"

    return probe


async def _get(address: str, port: int, path: str) -> tuple[int | None, bytes]:
    """HTTP/1.0, so that the answer ends with the connection."""
    reader, writer = await asyncio.open_connection(address, port)
    try:
        host = join_address(address, port)
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while len(answer) < MOST_BYTES and (data := await reader.read(65536)):
            answer += data
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    return (int(match[1]) if match else None), body


async def get_record(address: str, port: int, path: str) -> dict[str, Any] | None:
    """A JSON object; None where there is none to be had now."""
    try:
        status, body = await asyncio.wait_for(_get(address, port, path), ANSWER_S)
        found = json.loads(body) if status == 200 else None
    except (OSError, ValueError, asyncio.TimeoutError):
        return None
    return found if isinstance(found, dict) else None


def healthy(body: bytes) -> str | None:
    """A sandbox says so itself."""
    with contextlib.suppress(ValueError, AttributeError):
        if json.loads(body).get("status") == "healthy":
            return None
    return "it does not say that it is healthy"


def command(run: Callable[[], Awaitable[int]], shown: str) -> Probe:
    """It exits with 0."""

    async def probe() -> str | None:
        code = await run()
        return None if code == 0 else f"{shown} exited with {code}"

    return probe


def file(path: str) -> Probe:
    """It is there, and is not what was there before the service started."""
    before = _look(path)

    async def probe() -> str | None:
        found = await asyncio.get_running_loop().run_in_executor(None, _look, path)
        if found is None:
            return f"{path} is not there"
        return f"{path} is older than this start of the service" if found == before else None

    return probe


def log(path: str, pattern: str) -> Probe:
    """A line of it, of those written from now on, matches."""
    matcher = LogMatch(path, re.compile(pattern))

    async def probe() -> str | None:
        found = await asyncio.get_running_loop().run_in_executor(None, matcher.look)
        return None if found else f"no line of its log matches {pattern!r}"

    return probe


class LogMatch:
    """Reads a log from where it ends now; one that was rotated, from its beginning."""

    def __init__(self, path: str, pattern: re.Pattern[str]) -> None:
        self._path, self._pattern = path, pattern
        found = _look(path)
        self._inode, self._at = (found[0], found[1]) if found else (0, 0)
        self._rest = b""

    def look(self) -> bool:
        try:
            with open(self._path, "rb") as log:
                inode = os.fstat(log.fileno()).st_ino
                if self._inode not in (0, inode):
                    self._at = 0
                self._inode = inode
                log.seek(self._at)
                data = log.read(MOST_BYTES)
        except OSError:
            return False
        self._at += len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-MOST_BYTES:]
        return any(self._pattern.search(line.decode(errors="replace")) for line in [*lines, self._rest])


def _look(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
        return found.st_ino, found.st_size, found.st_mtime_ns
    except OSError:
        return None


def _words(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer within {ANSWER_S:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
