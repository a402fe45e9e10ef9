"""A client of an endpoint: one connection for each request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from muster.endpoint.exchange import read_body
from muster.sandbox.http import client, codec
from muster.sandbox.http.codec import ResponseHead


@dataclass(frozen=True)
class Answer:
    """A complete response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def engine(self) -> str:
        return str(json.loads(self.body)["engine"])

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"]["message"])


class EndpointClient:
    """Sends requests with the token."""

    def __init__(self, port: int, token: str) -> None:
        self._url, self._token = f"http://127.0.0.1:{port}", token

    @contextlib.asynccontextmanager
    async def stream(
        self, body: Any, path: str = "/v1/completions", **headers: str
    ) -> AsyncIterator[tuple[ResponseHead, AsyncIterator[bytes]]]:
        """Send a request and yield the head of its response and its body as it arrives."""
        reader, writer = await client.connect(self._url, 120)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"host": "x", "authorization": f"Bearer {self._token}", **named}
        writer.write(codec.request_bytes("POST", path, given, json.dumps(body).encode()))
        try:
            head = await asyncio.wait_for(client.read_head(reader), 120)
            yield head, read_body(reader, head)
        finally:
            writer.close()

    async def ask(self, body: Any = None, path: str = "/v1/completions", **headers: str) -> Answer:
        async with self.stream(body or {}, path, **headers) as (head, chunks):
            return Answer(head.status, head.headers, b"".join([data async for data in chunks]))
