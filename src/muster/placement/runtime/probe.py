"""Probe whether a program answers, on its node, at the address that clients use."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

HTTP, TCP, NONE = "http", "tcp", "none"


@dataclass(frozen=True)
class Probe:
    """How a program is probed. With NONE, a program is ready as soon as it runs."""

    kind: str = HTTP
    path: str = "/health"  # of HTTP; any status below 400 is a success
    interval: float = 2.0  # seconds
    timeout: float = 5.0  # seconds
    failures: int = 3  # in a row after which a ready program is considered dead

    def __post_init__(self) -> None:
        if self.kind not in (HTTP, TCP, NONE):
            raise ValueError(f"a probe is {HTTP!r}, {TCP!r} or {NONE!r}, not {self.kind!r}")
        if self.interval <= 0 or self.timeout <= 0 or self.failures < 1:
            raise ValueError("a probe's interval and timeout are above 0, its failures at least 1")


async def run_probe(probe: Probe, host: str, port: int) -> str:
    """Probe once; return an empty string on success, else why it failed."""
    try:
        return await asyncio.wait_for(_probe(probe, host, port), probe.timeout)
    except asyncio.TimeoutError:
        return f"no answer from {host}:{port} within {probe.timeout:g} s"
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"


async def _probe(probe: Probe, host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if probe.kind == TCP:
            return ""
        name = f"[{host}]" if ":" in host else host
        request = f"GET {probe.path} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        await writer.drain()
        fields = (await reader.readline()).decode(errors="replace").split()
        if len(fields) < 2 or not fields[0].startswith("HTTP/") or not fields[1].isdigit():
            return f"{host}:{port} does not speak HTTP"
        return "" if int(fields[1]) < 400 else f"GET {probe.path} answered {' '.join(fields[1:])}"
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()
