"""Convert large bodies in threads, so that other requests do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from muster.sandbox.http import large_json
from muster.sandbox.models import CellResult, ProgramResult

LARGE_BODIES_MAX = 2  # read or written in threads at the same time: each takes several times its size of memory
Made = TypeVar("Made")


class LargeBodies:
    """Converts small bodies at once, and large ones in a limited number of threads."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(LARGE_BODIES_MAX)

    async def translated(
        self, ends: Sequence[ProgramResult | CellResult], function: Callable[..., dict[str, Any]], *arguments: Any
    ) -> dict[str, Any]:
        """Return function(*arguments), in a thread if the programs printed much."""
        if sum(len(ended.stdout.data) + len(ended.stderr.data) for ended in ends) <= large_json.LARGE:
            return function(*arguments)
        return await self.in_thread(function, *arguments)

    async def encoded(self, body: Any) -> Any:
        """Return the body, as bytes if it is large."""
        if large_json.text_length(body) <= large_json.LARGE:
            return body
        return await self.in_thread(large_json.dump, body)

    async def in_thread(self, function: Callable[..., Made], *arguments: Any) -> Made:
        async with self._slots:
            return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
