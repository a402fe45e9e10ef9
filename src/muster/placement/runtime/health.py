"""The health of a program: probes whether it answers, at the address that clients use, and the state they lead to.

The program's actor runs the probes on its node; the replica's supervision reads the state.

state      leaves on                                  to
starting   a probe succeeds                           ready
ready      several probes in a row fail               failing
failing    a probe succeeds                           ready
(any)      the program ends                           ended
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

HTTP, TCP, NONE = "http", "tcp", "none"
STARTING, READY, FAILING, ENDED = "starting", "ready", "failing", "ended"


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


# -- state ----------------------------------------------------------------------------------------------------------


class ProgramHealth:
    """Runs the probe periodically. Every change of state increments the version, so that readers miss none."""

    def __init__(self, probe: Probe, run_probe: Callable[[], Awaitable[str]]) -> None:
        self._probe = probe
        self._run_probe = run_probe
        self._changed = asyncio.Condition()
        self.state = STARTING
        self.detail = ""  # why the last probe failed
        self.version = 0

    async def run(self, ended: asyncio.Future[Any]) -> None:
        """Probe until the program has ended."""
        if self._probe.kind == NONE:
            await self._set_state(READY)
        misses = 0
        while not ended.done():
            if self._probe.kind != NONE:
                self.detail = await self._run_probe()
                misses = misses + 1 if self.detail else 0
                if not misses:
                    await self._set_state(READY)
                elif self.state == READY and misses >= self._probe.failures:
                    await self._set_state(FAILING)
            await asyncio.wait([ended], timeout=self._probe.interval)
        await self._set_state(ENDED)

    async def _set_state(self, state: str) -> None:
        if state != self.state:
            async with self._changed:
                self.state = state
                self.version += 1
                self._changed.notify_all()

    async def wait_for_change(self, seen: int, seconds: float) -> None:
        """Return when the version exceeds `seen`, or after `seconds`."""

        async def newer() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: self.version > seen)

        try:
            await asyncio.wait_for(newer(), seconds)
        except asyncio.TimeoutError:
            return
