"""The health of a program, kept by its actor and read by the replica's supervision.

state      leaves on                                  to
starting   a probe succeeds                           ready
ready      several probes in a row fail               failing
failing    a probe succeeds                           ready
(any)      the program ends                           ended
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from muster.placement.runtime.probe import NONE, Probe

STARTING, READY, FAILING, ENDED = "starting", "ready", "failing", "ended"


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
