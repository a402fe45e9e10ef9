"""Three engines, and an endpoint whose replicas they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.endpoint.client import EndpointClient
from tests.endpoint.engine import Engine

from muster.endpoint.server import EndpointServer
from muster.endpoint.settings import EndpointSettings

TOKEN = "t0ken"


class RunningEndpoint:
    """An endpoint with the file of its members."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self._file, self._version = directory / "members.json", 0
        given = {"name": "chat", "port": 0, "token": TOKEN, "members_file": str(self._file), "health": "/health"}
        self.server = EndpointServer(EndpointSettings.from_json({**given, "interval": 0.05, **settings}))
        self.pool = self.server.proxy.pool

    async def open(self) -> None:
        await self.server.open()

    @property
    def client(self) -> EndpointClient:
        return EndpointClient(self.server.port, TOKEN)

    async def set_members(self, *engines: Engine) -> None:
        """Replace the members, and return when the endpoint serves them."""
        self._version += 1
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"version": self._version, "endpoints": [engine.url for engine in engines]}))
        new.rename(self._file)
        await self.until(lambda: self.server.proxy.members_version == self._version)

    async def until(self, condition: Callable[[], object]) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.01)

        await asyncio.wait_for(wait(), 120)

    def state(self, engine: Engine) -> str:
        return self.pool.replicas[engine.url].state


@pytest.fixture
async def engines() -> AsyncIterator[list[Engine]]:
    made = [await Engine(f"e{number}").open() for number in range(3)]
    yield made
    for engine in made:
        engine.close()


@pytest.fixture
async def start_endpoint(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    started: list[RunningEndpoint] = []

    async def start(*members: Engine, **settings: Any) -> RunningEndpoint:
        endpoint = RunningEndpoint(tmp_path, **settings)
        await endpoint.open()
        started.append(endpoint)
        if members:
            await endpoint.set_members(*members)
        return endpoint

    yield start
    for endpoint in started:
        await endpoint.server.close()
