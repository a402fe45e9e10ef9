"""The client for asyncio, with the guarantees of sync_client.py."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

from muster.sandbox.client import retry_rules
from muster.sandbox.client.retry_rules import (
    Call,
    ConnectionRefused,
    EndpointSelector,
    HttpAnswer,
    Result,
    SandboxLost,
    SandboxUnavailable,
    SessionHistories,
    raise_refusal,
)
from muster.sandbox.client.sync_client import resolve_endpoints
from muster.sandbox.http import client, codec
from muster.sandbox.http.client import IdleConnections, Streams


class AsyncClient:
    """A client for the tasks of one event loop."""

    def __init__(
        self, endpoints: str | Sequence[str] | None = None, token: str | None = None, wait_s: float = 60.0
    ) -> None:
        """`wait_s`: seconds for which a request that no endpoint accepts is retried."""
        self._selector = EndpointSelector(resolve_endpoints(endpoints))
        self._token, self._wait_s = token, wait_s
        self._histories = SessionHistories()
        self._session_locks: dict[str, asyncio.Lock] = {}  # cells of a session run one after the other
        self._idle = IdleConnections()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        self._idle.close()

    async def execute(
        self, code: str, language: str | None = None, timeout: float = 30, session: str | None = None, **more: Any
    ) -> Result:
        """Run a program, or with `session` a cell of that session.

        `timeout` is in seconds; `more` are further fields of /execute (std_input, ...).
        """
        language = language or ("ipython" if session is not None else "python")
        if session is None:
            _, result = await self._send(retry_rules.execute_call(code, language, timeout, None, False, more))
            assert result is not None
            return result
        async with self._session_locks.setdefault(session, asyncio.Lock()):
            return await self._execute_in(session, code, language, timeout, more)

    async def _execute_in(
        self, session: str, code: str, language: str, timeout: float, more: Mapping[str, Any]
    ) -> Result:
        history, complete = self._histories.of(session), self._histories.is_complete(session)
        result: Result | None = None
        status = retry_rules.SESSION_LOST
        if complete:
            call = retry_rules.execute_call(code, language, timeout, session, bool(history), more)
            status, result = await self._send(call)
        if status == retry_rules.SESSION_LOST:
            await self._replay(session, language, history)
            _, result = await self._send(retry_rules.execute_call(code, language, timeout, session, False, more))
        assert result is not None
        self._histories.add(session, code, timeout, result)
        return result

    async def _replay(self, session: str, language: str, history: Sequence[tuple[str, float]]) -> None:
        """Delete what is left of the session, and run its completed cells again."""
        self._histories.begin_replay(session)
        await self._delete(session)
        for cell, its_timeout in history:
            _, again = await self._send(retry_rules.execute_call(cell, language, its_timeout, session, False, {}))
            retry_rules.check_replayed(session, again)
        self._histories.end_replay(session)

    async def delete_session(self, session: str) -> bool:
        """End a session at all endpoints; return False if none has it."""
        self._histories.forget(session)
        return await self._delete(session)

    async def _delete(self, session: str) -> bool:
        self._selector.forget(session)
        call = retry_rules.plain_call(f"/sessions/{quote(session, safe='')}")
        deleted = [await self._deleted(endpoint, call) for endpoint in self._selector.endpoints]
        return any(deleted)

    async def _deleted(self, endpoint: str, call: Call) -> bool:
        try:
            return (await self._exchange("DELETE", endpoint, call)).status == 200
        except ConnectionRefused:
            return False  # its sessions are lost too

    async def _send(self, call: Call) -> tuple[int, Result | None]:
        """Retry until an endpoint accepts the call; return the status and, unless the session is lost, the result."""
        end = time.monotonic() + self._wait_s
        why = ""
        for pause in retry_rules.retry_pauses():
            for endpoint in self._selector.candidates(call.key, time.monotonic()):
                try:
                    answer = await self._exchange("POST", endpoint, call)
                except ConnectionRefused as error:
                    self._selector.mark_unreachable(endpoint, time.monotonic())
                    why = str(error)
                    continue
                self._selector.mark_reachable(endpoint, call.key)
                if answer.status == retry_rules.SESSION_LOST:
                    return answer.status, None
                if answer.status not in retry_rules.NOT_RUN:
                    return answer.status, retry_rules.result_of(answer)
                why = answer.error
                if call.key is not None:
                    break  # its node is busy: another endpoint would create the session a second time
            if time.monotonic() + pause > end:
                raise SandboxUnavailable(f"no endpoint accepted the request within {self._wait_s:g} s: {why}")
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    # -- batches ----------------------------------------------------------------------------------------------------

    async def batch(
        self, programs: Iterable[str | Mapping[str, Any]], language: str = "python", timeout: float = 30
    ) -> AsyncIterator[tuple[int, Result]]:
        """Run programs at all endpoints; yield the index and result of each as it ends."""
        chosen = list(programs)
        targets = [endpoint for endpoint in self._selector.endpoints for _ in range(await self._streams_at(endpoint))]
        todo = retry_rules.batch_calls(chosen, language, timeout, len(targets))[::-1]
        results: asyncio.Queue[tuple[int, Result]] = asyncio.Queue()
        workers = [asyncio.ensure_future(self._stream(endpoint, todo, results)) for endpoint in targets]
        over = asyncio.gather(*workers, return_exceptions=True)
        try:
            for left in range(len(chosen), 0, -1):
                getting = asyncio.ensure_future(results.get())
                waiting: list[asyncio.Future[Any]] = [getting, over]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done() and results.empty():
                    getting.cancel()
                    raise SandboxUnavailable(f"no endpoint accepted {left} programs of the batch: {over.result()}")
                yield await getting
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(over, return_exceptions=True)

    async def _streams_at(self, endpoint: str) -> int:
        """Return the number of concurrent requests for this endpoint: a gateway has many nodes."""
        try:
            return retry_rules.batch_streams(await self._exchange("GET", endpoint, retry_rules.plain_call("/gateway")))
        except (ConnectionRefused, SandboxLost):
            return retry_rules.batch_streams(None)

    async def _is_reachable(self, endpoint: str) -> bool:
        try:
            return (await self._exchange("GET", endpoint, retry_rules.plain_call("/health"))).status == 200
        except (ConnectionRefused, SandboxLost):
            return False

    async def _stream(self, endpoint: str, todo: list[tuple[int, Call]], results: Any) -> None:
        """Send parts of the batch to one endpoint, until none is left or the endpoint is lost."""
        while todo:
            first, call = todo.pop()
            try:
                whole = await self._stream_one(endpoint, first, call, results)
            except ConnectionRefused:
                todo.append((first, call))  # nothing of it was run: another endpoint may take it
                raise
            if not whole and not await self._is_reachable(endpoint):
                return  # the other endpoints take its part of the batch

    async def _stream_one(self, endpoint: str, first: int, call: Call, results: Any) -> bool:
        """Send one part; return False if the response was cut off. Raise ConnectionRefused if nothing of it was run."""
        wanted = set(range(len(json.loads(call.body)["requests"])))
        reader, writer = await self._connect(endpoint)
        try:
            writer.write(self._request("POST", endpoint, call))
            head = await asyncio.wait_for(client.read_head(reader), call.timeout)
            if head.status != 200:
                raise_refusal(HttpAnswer(head.status, await reader.readexactly(head.length)))
            lines = client.read_lines(reader)
            while (line := await asyncio.wait_for(_next_line(lines), call.timeout)) is not None:
                if not line.strip():
                    continue  # keep-alive of the server
                answer = json.loads(line)
                wanted.discard(answer["index"])
                results.put_nowait(
                    (first + answer["index"], retry_rules.parse_result(answer, answer.get("usage") or {}))
                )
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            for index in wanted:
                reason = f"{endpoint}: {str(error) or type(error).__name__}"
                results.put_nowait((first + index, retry_rules.lost_result(reason)))
            return False
        finally:
            writer.close()
        return True

    # -- connections ------------------------------------------------------------------------------------------------

    async def _exchange(self, method: str, endpoint: str, call: Call) -> HttpAnswer:
        """Raise ConnectionRefused if the call was not sent, SandboxLost if the connection broke afterwards."""
        request = self._request(method, endpoint, call)  # a ValueError here means that nothing was sent
        reader, writer = self._idle.acquire(endpoint) or await self._connect(endpoint)
        try:
            writer.write(request)
            head, body = await asyncio.wait_for(client.read_response(reader), call.timeout)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            writer.close()
            raise SandboxLost(f"{endpoint}: {str(error) or type(error).__name__}") from error
        except BaseException:
            writer.close()
            raise
        if head.is_last:
            writer.close()
        else:
            self._idle.release(endpoint, (reader, writer))
        return HttpAnswer(head.status, body, head.headers.get("x-muster-usage"), head.headers.get("x-muster-node"))

    def _request(self, method: str, endpoint: str, call: Call) -> bytes:
        return codec.request_bytes(method, call.path, retry_rules.headers(call, endpoint, self._token), call.body)

    async def _connect(self, endpoint: str) -> Streams:
        try:
            return await client.connect(endpoint, retry_rules.CONNECT_TIMEOUT_S)
        except OSError as error:
            raise ConnectionRefused(f"{endpoint}: {str(error) or 'no response'}") from error


async def _next_line(lines: AsyncIterator[bytes]) -> bytes | None:
    """Return None at the end."""
    async for line in lines:
        return line
    return None
