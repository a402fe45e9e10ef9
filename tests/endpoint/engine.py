"""A server as an engine's: OpenAI's completions, whole or as a stream of events, and a health response."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from muster.sandbox.http import codec
from muster.sandbox.http.codec import HttpResponse, RequestHead


class Engine:
    """Keeps its requests, and holds each token of a stream until the test releases it."""

    def __init__(self, name: str, port: int = 0) -> None:
        self.name, self._port = name, port
        self.requests: list[tuple[RequestHead, bytes]] = []
        self.health: dict[str, Any] = {"status": "ok"}
        self.health_status = 200
        self.status = 200
        self.seconds = 0.0  # that a request takes
        self.tokens: asyncio.Queue[str | None] = asyncio.Queue()  # None: the stream is complete
        self.begun = asyncio.Event()  # a request has arrived
        self.hold = asyncio.Event()  # set: requests are answered
        self.hold.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> Engine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while True:
                data = await reader.readuntil(codec.HEAD_END)
                head, is_last = codec.parse_request_head(data[: -len(codec.HEAD_END)])
                body = await reader.readexactly(codec.request_body_length(head.headers) or 0)
                if head.path == "/health":
                    writer.write(codec.response_bytes(HttpResponse(self.health_status, self.health), is_last))
                else:
                    self.requests.append((head, body))
                    self.begun.set()
                    await self.hold.wait()
                    await asyncio.sleep(self.seconds)
                    await self._answer(writer, head, body)
                if is_last:
                    break
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, head: RequestHead, body: bytes) -> None:
        if b'"stream": true' in body:
            writer.write(codec.stream_head_bytes(HttpResponse(200, "", {"content-type": "text/event-stream"}), False))
            while (token := await self.tokens.get()) is not None:
                writer.write(codec.chunk_bytes(f"data: {json.dumps({'token': token})}\n\n".encode()))
            writer.write(codec.chunk_bytes(b"data: [DONE]\n\n") + codec.LAST_CHUNK)
        elif head.path == "/until-close":
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it")
            raise ConnectionError
        else:
            writer.write(codec.response_bytes(HttpResponse(self.status, {"engine": self.name}), False))

    def kill(self) -> None:
        """Close the listening socket and all connections, as the kernel does for a killed process."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    def close(self) -> None:
        self.kill()
