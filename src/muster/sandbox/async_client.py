"""The client for asyncio: the same promises as client.py's, on plain streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

from muster.sandbox import calls
from muster.sandbox.calls import Call, Choice, Histories, Result, SandboxLost, SandboxRefused, SandboxUnavailable
from muster.sandbox.client import ConnectionRefused, given_or_found

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LINE_LIMIT = 256 << 20


class AsyncClient:
    """For tasks of one event loop."""

    def __init__(
        self, endpoints: str | Sequence[str] | None = None, token: str | None = None, wait_s: float = 60.0
    ) -> None:
        """`wait_s`: for how long a request that nobody could take is tried again."""
        self._choice = Choice(given_or_found(endpoints))
        self._token, self._wait_s = token, wait_s
        self._histories = Histories()
        self._idle: dict[str, list[Streams]] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for _, writer in [one for idle in self._idle.values() for one in idle]:
            writer.close()
        self._idle.clear()

    async def execute(
        self, code: str, language: str | None = None, timeout: float = 30, session: str | None = None, **more: Any
    ) -> Result:
        """Run a program, or with `session` a cell of it. `more`: further fields of /execute (std_input, ...)."""
        language = language or ("ipython" if session is not None else "python")
        history = self._histories.of(session)
        call = calls.execute_call(code, language, timeout, session, bool(history), more)
        status, result = await self._send(call, session)
        if status == calls.SESSION_LOST:
            for cell, its_timeout in history:
                await self._send(calls.execute_call(cell, language, its_timeout, session, False, {}), session)
            _, result = await self._send(calls.execute_call(code, language, timeout, session, False, more), session)
        assert result is not None
        self._histories.add(session, code, timeout, result)
        return result

    async def delete_session(self, session: str) -> bool:
        """End it wherever it is; False when nobody has it."""
        self._histories.forget(session)
        call = Call(f"/sessions/{quote(session, safe='')}", b"", {}, calls.PATIENCE_S)
        answers = [(await self._exchange("DELETE", endpoint, call))[0] for endpoint in self._choice.endpoints]
        return 200 in answers

    async def _send(self, call: Call, session: str | None) -> tuple[int, Result | None]:
        """Until somebody takes it; a lost session is the caller's matter."""
        end = time.monotonic() + self._wait_s
        why = ""
        for pause in calls.pauses():
            for endpoint in self._choice.order(session, time.monotonic()):
                try:
                    status, body, usage = await self._exchange("POST", endpoint, call)
                except ConnectionRefused as error:
                    self._choice.failed(endpoint, time.monotonic())
                    why = str(error)
                    continue
                self._choice.works(endpoint)
                if status == calls.SESSION_LOST:
                    return status, None
                if status != calls.NOT_RUN:
                    return status, calls.result_of(status, body, usage)
                why = json.loads(body).get("error", "")
                if session is not None:
                    break  # it is there, and busy: another endpoint would make a second one
            if time.monotonic() + pause > end:
                raise SandboxUnavailable(f"nobody took the request for {self._wait_s:g} s: {why}")
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    # -- batches ----------------------------------------------------------------------------------------------------

    async def batch(
        self, programs: Iterable[str | Mapping[str, Any]], language: str = "python", timeout: float = 30
    ) -> AsyncIterator[tuple[int, Result]]:
        """Results as they end, with the number of their program; over all endpoints."""
        chosen = list(programs)
        todo = calls.batch_calls(chosen, language, timeout)[::-1]
        results: asyncio.Queue[tuple[int, Result]] = asyncio.Queue()
        streams = [
            asyncio.ensure_future(self._stream(endpoint, todo, results))
            for endpoint in self._choice.endpoints
            for _ in range(calls.STREAMS)
        ]
        over = asyncio.gather(*streams, return_exceptions=True)
        try:
            for left in range(len(chosen), 0, -1):
                getting = asyncio.ensure_future(results.get())
                waiting: list[asyncio.Future[Any]] = [getting, over]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done() and results.empty():
                    getting.cancel()
                    raise SandboxUnavailable(f"{left} programs of the batch were taken by nobody: {over.result()}")
                yield await getting
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(over, return_exceptions=True)

    async def _stream(self, endpoint: str, todo: list[tuple[int, Call]], results: Any) -> None:
        while todo:
            first, call = todo.pop()
            try:
                reader, writer = await self._connect(endpoint)
            except ConnectionRefused:
                todo.append((first, call))  # nothing of it was run: somebody else may
                raise
            wanted = set(range(len(json.loads(call.body)["requests"])))
            try:
                writer.write(self._request("POST", endpoint, call))
                status, _ = await _head(reader)
                if status != 200:
                    raise SandboxRefused(f"HTTP {status}")
                async for line in _lines(reader):
                    answer = json.loads(line)
                    wanted.discard(answer["index"])
                    results.put_nowait((first + answer["index"], calls.result_from(answer, answer.get("usage") or {})))
            except (OSError, EOFError, ValueError) as error:
                for index in wanted:
                    words = f"{endpoint}: {error or type(error).__name__}"
                    results.put_nowait((first + index, calls.lost_result(words)))
                return  # the others go on without this endpoint
            finally:
                writer.close()

    # -- connections ------------------------------------------------------------------------------------------------

    async def _exchange(self, method: str, endpoint: str, call: Call) -> tuple[int, bytes, str | None]:
        """ConnectionRefused when it was not sent; SandboxLost when that is not known."""
        reader, writer = self._take(endpoint) or await self._connect(endpoint)
        try:
            writer.write(self._request(method, endpoint, call))
            status, headers, body = await asyncio.wait_for(_answer(reader), call.timeout)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            writer.close()
            raise SandboxLost(f"{endpoint}: {error or type(error).__name__}") from error
        except BaseException:
            writer.close()
            raise
        self._idle.setdefault(endpoint, []).append((reader, writer))
        return status, body, headers.get("x-muster-usage")

    def _request(self, method: str, endpoint: str, call: Call) -> bytes:
        headers = {**call.headers, "Host": urlsplit(endpoint).netloc, "Content-Length": str(len(call.body))}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        lines = [f"{method} {call.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return "\r\n".join(lines).encode() + call.body

    def _take(self, endpoint: str) -> Streams | None:
        """One that is open still: a closed one must be noticed before a request is sent into it."""
        idle = self._idle.get(endpoint, [])
        while idle:
            reader, writer = idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    async def _connect(self, endpoint: str) -> Streams:
        parts = urlsplit(endpoint)
        opening = asyncio.open_connection(parts.hostname, parts.port or 80, limit=LINE_LIMIT)
        try:
            return await asyncio.wait_for(opening, calls.CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:
            raise ConnectionRefused(f"{endpoint}: {error or 'no answer'}") from error


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    status, headers = await _head(reader)
    return status, headers, await reader.readexactly(int(headers["content-length"]))


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
    return int(first.split(" ")[1]), headers


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a body that comes in chunks; the server sends one in each."""
    while True:
        size = int(await reader.readline(), 16)
        data = await reader.readexactly(size + 2)
        if size == 0:
            return
        yield data[:-2]
