"""What is known of a program's health, kept by its actor and read by whoever supervises it.

state      leaves on                                  to
starting   it answers its probe                       ready
ready      several probes in a row are not answered   failing
failing    it answers again                           ready
(any)      the program ends                           ended
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from muster.placement.runtime.probe import NONE, Probe

STARTING, READY, FAILING, ENDED = "starting", "ready", "failing", "ended"


class ProgramHealth:
    """Asks again and again; every change of state has a number, so that nobody misses one."""

    def __init__(self, probe: Probe, ask: Callable[[], Awaitable[str]]) -> None:
        self._probe = probe
        self._ask = ask
        self._changed = asyncio.Condition()
        self.state = STARTING
        self.detail = ""  # what came instead of an answer
        self.version = 0

    async def run(self, ended: asyncio.Future[Any]) -> None:
        """Until the program has ended."""
        if self._probe.kind == NONE:
            await self._become(READY)
        misses = 0
        while not ended.done():
            if self._probe.kind != NONE:
                self.detail = await self._ask()
                misses = misses + 1 if self.detail else 0
                if not misses:
                    await self._become(READY)
                elif self.state == READY and misses >= self._probe.failures:
                    await self._become(FAILING)
            await asyncio.wait([ended], timeout=self._probe.interval)
        await self._become(ENDED)

    async def _become(self, state: str) -> None:
        if state != self.state:
            async with self._changed:
                self.state = state
                self.version += 1
                self._changed.notify_all()

    async def news(self, seen: int, seconds: float) -> None:
        """Returns when something newer than `seen` is known, or after so many seconds."""

        async def newer() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: self.version > seen)

        try:
            await asyncio.wait_for(newer(), seconds)
        except asyncio.TimeoutError:
            return
