"""Engines in this process, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from muster.sandbox.engine.engine import Engine
from muster.sandbox.settings import SandboxSettings


@pytest.fixture
async def engines(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Awaitable[Engine]]]:
    """Open an engine for this test: await engines(**settings). On a busy machine a worker may start slowly."""
    monkeypatch.setattr("muster.sandbox.engine.engine.MAX_WAIT_S", 120.0)
    monkeypatch.setattr("muster.sandbox.engine.worker.START_TIMEOUT_S", 120.0)
    opened: list[Engine] = []

    async def start(**settings: Any) -> Engine:
        engine = Engine(SandboxSettings(**{"workers_min": 1, "workers_max": 2, "preload": (), **settings}))
        await engine.open()
        opened.append(engine)
        return engine

    yield start
    for engine in opened:
        await engine.close()


@pytest.fixture
async def engine(engines: Callable[..., Awaitable[Engine]]) -> Engine:
    """An engine with one warm worker."""
    return await engines()
