"""The blocking client: one endpoint or several, sessions with affinity, retries that never run code twice.

with Client(["http://n1:7000", "http://n2:7000"], token=token) as box:
    box.execute("x = 1", session="alice")
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from muster.sandbox.http import codec
from muster.sandbox.http.client import IDLE_S, BlockingConnection

URL_VARIABLES = ("MUSTER_SERVICE_SANDBOX", "MUSTER_SERVICE_SANDBOX_URLS")  # the first that is set
DEFAULT_URL = "http://127.0.0.1:6000"


class Client:
    """A client for any number of threads."""

    def __init__(
        self, endpoints: str | Sequence[str] | None = None, token: str | None = None, wait_s: float = 60.0
    ) -> None:
        """`wait_s`: seconds for which a request that no endpoint accepts is retried."""
        self._selector = EndpointSelector(resolve_endpoints(endpoints))
        self._token, self._wait_s = token, wait_s
        self._histories = SessionHistories()
        self._session_locks: dict[str, threading.Lock] = {}  # cells of a session run one after the other
        self._idle: dict[str, list[tuple[BlockingConnection, float]]] = {}  # with the time since which each is idle
        self._lock = threading.Lock()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for connections in self._idle.values():
                for connection, _ in connections:
                    connection.close()
            self._idle.clear()

    # -- programs and cells -----------------------------------------------------------------------------------------

    def execute(
        self, code: str, language: str | None = None, timeout: float = 30, session: str | None = None, **more: Any
    ) -> Result:
        """Run a program, or with `session` a cell of that session.

        `timeout` is in seconds; `more` are further fields of /execute (std_input, ...).
        """
        language = language or ("ipython" if session is not None else "python")
        if session is None:
            _, result = self._send(retry_rules.execute_call(code, language, timeout, None, False, more))
            assert result is not None
            return result
        with self._lock:
            lock = self._session_locks.setdefault(session, threading.Lock())
        with lock:
            return self._execute_in(session, code, language, timeout, more)

    def _execute_in(self, session: str, code: str, language: str, timeout: float, more: Mapping[str, Any]) -> Result:
        history, complete = self._histories.of(session), self._histories.is_complete(session)
        result: Result | None = None
        status = retry_rules.SESSION_LOST
        if complete:
            status, result = self._send(retry_rules.execute_call(code, language, timeout, session, bool(history), more))
        if status == retry_rules.SESSION_LOST:
            self._replay(session, language, history)
            _, result = self._send(retry_rules.execute_call(code, language, timeout, session, False, more))
        assert result is not None
        self._histories.add(session, code, timeout, result)
        return result

    def _replay(self, session: str, language: str, history: Sequence[tuple[str, float]]) -> None:
        """Delete what is left of the session, and run its completed cells again."""
        self._histories.begin_replay(session)
        self._delete(session)
        for cell, its_timeout in history:
            _, again = self._send(retry_rules.execute_call(cell, language, its_timeout, session, False, {}))
            retry_rules.check_replayed(session, again)
        self._histories.end_replay(session)

    def delete_session(self, session: str) -> bool:
        """End a session at all endpoints; return False if none has it."""
        with self._lock:
            self._histories.forget(session)
        return self._delete(session)

    def _delete(self, session: str) -> bool:
        with self._lock:
            self._selector.forget(session)
        call = retry_rules.plain_call(f"/sessions/{quote(session, safe='')}")
        deleted = [self._deleted(endpoint, call) for endpoint in self._selector.endpoints]
        return any(deleted)

    def _deleted(self, endpoint: str, call: Call) -> bool:
        try:
            return self._exchange("DELETE", endpoint, call).status == 200
        except ConnectionRefused:
            return False  # its sessions are lost too

    def health(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return the answer of an endpoint (default: the first) to `/health`."""
        call = retry_rules.plain_call("/health")
        found: dict[str, Any] = json.loads(self._exchange("GET", endpoint or self._selector.endpoints[0], call).body)
        return found

    def _send(self, call: Call) -> tuple[int, Result | None]:
        """Retry until an endpoint accepts the call; return the status and, unless the session is lost, the result."""
        end = time.monotonic() + self._wait_s
        why = ""
        for pause in retry_rules.retry_pauses():
            for endpoint in self._selector.candidates(call.key, time.monotonic()):
                try:
                    answer = self._exchange("POST", endpoint, call)
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
            time.sleep(pause)
        raise AssertionError("unreachable")

    # -- batches ----------------------------------------------------------------------------------------------------

    def batch(
        self, programs: Iterable[str | Mapping[str, Any]], language: str = "python", timeout: float = 30
    ) -> Iterator[tuple[int, Result]]:
        """Run programs at all endpoints; yield the index and result of each as it ends."""
        todo: queue.Queue[tuple[int, Call]] = queue.Queue()
        chosen = list(programs)
        targets = [endpoint for endpoint in self._selector.endpoints for _ in range(self._streams_at(endpoint))]
        for numbered in retry_rules.batch_calls(chosen, language, timeout, len(targets)):
            todo.put(numbered)
        results: queue.Queue[tuple[int, Result] | BaseException | None] = queue.Queue()
        stopped = threading.Event()
        streams = [
            threading.Thread(target=self._stream, args=(endpoint, todo, results, stopped), daemon=True)
            for endpoint in targets
        ]
        for stream in streams:
            stream.start()
        try:
            yield from _collect(results, len(streams), len(chosen))
        finally:
            stopped.set()

    def _streams_at(self, endpoint: str) -> int:
        """Return the number of concurrent requests for this endpoint: a gateway has many nodes."""
        try:
            return retry_rules.batch_streams(self._exchange("GET", endpoint, retry_rules.plain_call("/gateway")))
        except (ConnectionRefused, SandboxLost):
            return retry_rules.batch_streams(None)

    def _is_reachable(self, endpoint: str) -> bool:
        try:
            return self._exchange("GET", endpoint, retry_rules.plain_call("/health")).status == 200
        except (ConnectionRefused, SandboxLost):
            return False

    def _stream(self, endpoint: str, todo: Any, results: Any, stopped: threading.Event) -> None:
        """Send parts of the batch to one endpoint, until none is left or the endpoint is lost."""
        try:
            while not stopped.is_set():
                try:
                    first, call = todo.get_nowait()
                except queue.Empty:
                    break
                try:
                    complete = self._stream_one(endpoint, first, call, results, stopped)
                    if not complete and not self._is_reachable(endpoint):
                        break  # otherwise a node behind the gateway was lost
                except ConnectionRefused as error:
                    todo.put((first, call))  # nothing of it was run: another endpoint may take it
                    results.put(error)
                    break
        except BaseException as error:
            results.put(error)
        finally:
            results.put(None)

    def _stream_one(self, endpoint: str, first: int, call: Call, results: Any, stopped: threading.Event) -> bool:
        """Send one part; return False if the response was cut off. Raise ConnectionRefused if nothing of it was run."""
        wanted = set(range(len(json.loads(call.body)["requests"])))
        connection = self._connect(endpoint)
        try:
            head = connection.send(self._request("POST", endpoint, call), call.timeout)
            if head.status != 200:
                raise_refusal(HttpAnswer(head.status, connection.read_body(head)))
            for line in connection.read_lines():
                if not line.strip():
                    continue  # keep-alive of the server
                answer = json.loads(line)
                wanted.discard(answer["index"])
                results.put((first + answer["index"], retry_rules.parse_result(answer, answer.get("usage") or {})))
                if stopped.is_set():
                    return False
            why = "the response has too few results"
        except (OSError, EOFError, ValueError) as error:
            why = str(error) or type(error).__name__
        finally:
            connection.close()
        for index in wanted:
            results.put((first + index, retry_rules.lost_result(f"{endpoint}: {why}")))
        return not wanted

    # -- connections ------------------------------------------------------------------------------------------------

    def _exchange(self, method: str, endpoint: str, call: Call) -> HttpAnswer:
        """Raise ConnectionRefused if the call was not sent, SandboxLost if the connection broke afterwards."""
        request = self._request(method, endpoint, call)  # a ValueError here means that nothing was sent
        connection = self._acquire(endpoint) or self._connect(endpoint)
        try:
            head = connection.send(request, call.timeout)
            body = connection.read_body(head)
        except (OSError, EOFError, ValueError) as error:
            connection.close()
            raise SandboxLost(f"{endpoint}: {str(error) or type(error).__name__}") from error
        except BaseException:
            connection.close()
            raise
        if head.is_last:
            connection.close()
        else:
            with self._lock:
                self._idle.setdefault(endpoint, []).append((connection, time.monotonic()))
        return HttpAnswer(head.status, body, head.headers.get("x-muster-usage"), head.headers.get("x-muster-node"))

    def _request(self, method: str, endpoint: str, call: Call) -> bytes:
        return codec.request_bytes(method, call.path, retry_rules.headers(call, endpoint, self._token), call.body)

    def _acquire(self, endpoint: str) -> BlockingConnection | None:
        """Return a connection that is still open: a closed one must be noticed before a request is sent."""
        while True:
            with self._lock:
                connections = self._idle.get(endpoint)
                if not connections:
                    return None
                connection, since = connections.pop()
            fresh = time.monotonic() - since < IDLE_S
            if fresh and connection.is_idle:
                return connection
            connection.close()

    def _connect(self, endpoint: str) -> BlockingConnection:
        try:
            return BlockingConnection(endpoint, retry_rules.CONNECT_TIMEOUT_S)
        except OSError as error:
            raise ConnectionRefused(f"{endpoint}: {error}") from error


def _collect(results: Any, streams: int, wanted: int) -> Iterator[tuple[int, Result]]:
    """Yield results until all programs have one; raise SandboxUnavailable if all streams end before."""
    problem: BaseException | None = None
    while streams and wanted:
        item = results.get()
        if item is None:
            streams -= 1
        elif isinstance(item, BaseException):
            problem = item
        else:
            wanted -= 1
            yield item
    if wanted:
        raise SandboxUnavailable(f"no endpoint accepted {wanted} programs of the batch: {problem}")


def resolve_endpoints(endpoints: str | Sequence[str] | None) -> list[str]:
    """Return the given endpoints, else those of the current run, else this machine's."""
    if endpoints is None:
        found = next((os.environ[name] for name in URL_VARIABLES if os.environ.get(name)), DEFAULT_URL)
        return [one for one in found.replace(",", " ").split() if one]
    return [endpoints] if isinstance(endpoints, str) else list(endpoints)
