"""The requests of a client, when they may be retried, and how responses are read: pure, shared by both clients.

A retry never runs code twice. A request is sent again only if nothing of it was run: no connection was made, or the
server responded with 503. If a connection breaks after the request was sent, SandboxLost is raised: whether the code
ran is unknown. A cell of a session with history requires that the session exists; otherwise the server runs nothing
(409), and the client replays the completed cells first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from muster.sandbox.hash_ring import Ring

RESPONSE_MARGIN_S = 5.0  # beyond a program's timeout: for queueing and killing
CONNECT_TIMEOUT_S = 5.0
NOT_RUN = (503, 429)  # statuses after which nothing was run, and the same request may be sent again
SESSION_LOST = 409  # nothing was run either
LOST = (502, 504)  # statuses of a gateway after the node that had the request was lost
MUST_EXIST = "X-Session-Must-Exist"
BATCH_CHUNK = 128  # programs of a batch in one request: what a lost endpoint can cost
STREAMS_PER_NODE = 2  # concurrent requests of a batch, so that a node never waits for the next one
STREAMS_MAX = 64
RETRY_PAUSE_FIRST_S, RETRY_PAUSE_MAX_S = 0.1, 2.0  # it doubles
UNREACHABLE_S = 2.0  # for which an endpoint that could not be connected to is tried last


class SandboxUnavailable(Exception):
    """No endpoint accepted the request in time; nothing of it was run."""


class SandboxLost(Exception):
    """The connection broke after the request was sent: whether its code ran is unknown."""


class ConnectionRefused(Exception):
    """Nothing was run: no connection was made, or a gateway reported that it could not forward the request."""


class SandboxRefused(Exception):
    """The request is invalid at every endpoint."""


@dataclass(frozen=True)
class Result:
    """The result of a program or a cell."""

    status: str  # completed, error, failed or timeout
    stdout: str
    stderr: str
    new_session: bool = False
    reason: str | None = None
    usage: dict[str, float] = field(default_factory=dict)
    node: str = ""  # the host that ran it; unknown for programs of a batch

    @property
    def completed(self) -> bool:
        """Return whether the status is `completed`."""
        return self.status == "completed"


@dataclass(frozen=True)
class Call:
    """One request."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    timeout: float
    key: str | None = None  # the session or workspace that binds it to one node


@dataclass(frozen=True)
class HttpAnswer:
    """The parts of a response that a client uses."""

    status: int
    body: bytes
    usage: str | None = None
    node: str | None = None

    @property
    def error(self) -> str:
        """The message of a response that is not a result."""
        try:
            return str(json.loads(self.body)["error"])
        except (ValueError, LookupError, TypeError):
            return f"HTTP {self.status}"


def plain_call(path: str) -> Call:
    """Return a call without a body."""
    return Call(path, b"", {}, RESPONSE_MARGIN_S)


def execute_call(
    code: str, language: str, timeout: float, session: str | None, known: bool, more: Mapping[str, Any]
) -> Call:
    """Return the request of a program or cell. `known`: the session has state that the code may need."""
    fields = {"generated_code": code, "timeout": timeout, "language": language, **more}
    headers = {"Content-Type": "application/json"}
    if session is not None:
        headers["X-Session-ID"] = session
    workspace = more.get("workspace")
    if workspace is not None:
        headers["X-Workspace-ID"] = workspace  # where gateways see it
    if known:
        headers[MUST_EXIST] = "1"
    key = session if session is not None else workspace
    return Call("/execute", json.dumps(fields).encode(), headers, timeout + RESPONSE_MARGIN_S, key)


def headers(call: Call, endpoint: str, token: str | None) -> dict[str, str]:
    """Return all headers of a call to this endpoint."""
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    return {**call.headers, "Host": urlsplit(endpoint).netloc, **authorization}


def batch_streams(gateway: HttpAnswer | None) -> int:
    """Return how many concurrent requests of a batch an endpoint can use, from its response to GET /gateway."""
    try:
        nodes = len(json.loads(gateway.body)["endpoints"]) if gateway is not None and gateway.status == 200 else 1
    except (ValueError, LookupError, TypeError):
        nodes = 1
    return min(STREAMS_PER_NODE * max(1, nodes), STREAMS_MAX)


def batch_calls(
    programs: Sequence[str | Mapping[str, Any]], language: str, timeout: float, streams: int
) -> list[tuple[int, Call]]:
    """Split a batch into requests; each comes with the index of its first program."""
    calls = []
    chunk = max(1, min(BATCH_CHUNK, -(-len(programs) // streams)))
    for first in range(0, len(programs), chunk):
        bodies = [
            {"timeout": timeout, "language": language, **({"generated_code": one} if isinstance(one, str) else one)}
            for one in programs[first : first + chunk]
        ]
        body = json.dumps({"requests": bodies}).encode()
        calls.append((first, Call("/batch", body, {"Content-Type": "application/json"}, timeout + RESPONSE_MARGIN_S)))
    return calls


def lost_result(reason: str) -> Result:
    """Return the result of a batch's program that may have been running when its endpoint was lost."""
    return Result("error", "", f"the sandbox was lost while this ran: {reason}\n", reason="lost")


def result_of(answer: HttpAnswer) -> Result:
    """Return the result of a program or cell; raise SandboxLost, or SandboxRefused if the request is invalid."""
    if answer.status in LOST:
        raise SandboxLost(answer.error)
    if answer.status != 200:
        raise SandboxRefused(answer.error)
    try:
        body = json.loads(answer.body)
    except ValueError:
        raise SandboxLost("the response is not JSON") from None
    return replace(parse_result(body, json.loads(answer.usage) if answer.usage else {}), node=answer.node or "")


def raise_refusal(answer: HttpAnswer) -> None:
    """Raise the error of a batch that was not begun; ConnectionRefused if another endpoint may run it."""
    if answer.status in NOT_RUN:
        raise ConnectionRefused(answer.error)
    if answer.status not in LOST:
        raise SandboxRefused(answer.error)
    raise ValueError(answer.error)  # handled as a response that is cut off


def parse_result(answer: Mapping[str, Any], usage: dict[str, float]) -> Result:
    return Result(
        answer["process_status"],
        answer["stdout"],
        answer["stderr"],
        answer.get("new_session_created", False),
        answer.get("reason"),
        usage,
    )


class EndpointSelector:
    """Chooses endpoints: the owner of a session first, otherwise in turn; unreachable ones last.

    A session that had to move to another endpoint stays there: its owner may still have an outdated copy.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        if not endpoints:
            raise ValueError("a client needs at least one endpoint")
        self.endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._next = 0
        self._unreachable: dict[str, float] = {}  # until when
        self._moved: dict[str, str] = {}
        self._ring: Ring | None = None  # computed when a key is first used

    def candidates(self, key: str | None, now: float) -> Iterator[str]:
        """Yield the endpoints to try; with thousands of them, mostly only the first is used."""
        unreachable = []
        for endpoint in self._preferred(key):
            if self._unreachable.get(endpoint, 0.0) > now:
                unreachable.append(endpoint)
            else:
                yield endpoint
        yield from unreachable

    def _preferred(self, key: str | None) -> Iterator[str]:
        if key is None:
            self._next = (self._next + 1) % len(self.endpoints)
            yield from self.endpoints[self._next :] + self.endpoints[: self._next]
            return
        moved = self._moved.get(key)
        if moved is not None:
            yield moved
        yield from (endpoint for endpoint in self._walk(key) if endpoint != moved)

    def _walk(self, key: str) -> Iterator[str]:
        if self._ring is None:
            self._ring = Ring(self.endpoints)
        return self._ring.walk(key.encode())

    def mark_unreachable(self, endpoint: str, now: float) -> None:
        self._unreachable[endpoint] = now + UNREACHABLE_S

    def mark_reachable(self, endpoint: str, key: str | None = None) -> None:
        self._unreachable.pop(endpoint, None)
        if key is not None and (key in self._moved or next(self._walk(key)) != endpoint):
            self._moved[key] = endpoint

    def forget(self, key: str) -> None:
        self._moved.pop(key, None)


class SessionHistories:
    """The completed cells of each session, to be replayed when the session is lost."""

    def __init__(self) -> None:
        self._cells: dict[str, list[tuple[str, float]]] = {}
        self._partial: set[str] = set()  # sessions whose replay was begun and has not been completed

    def of(self, session: str | None) -> list[tuple[str, float]]:
        """Return code and timeout (seconds) of each cell."""
        return list(self._cells.get(session, ())) if session is not None else []

    def add(self, session: str | None, code: str, timeout: float, result: Result) -> None:
        if session is not None and result.completed:
            self._cells.setdefault(session, []).append((code, timeout))

    def is_complete(self, session: str) -> bool:
        """Return False if a server may have only a part of the session, after a replay that failed."""
        return session not in self._partial

    def begin_replay(self, session: str) -> None:
        self._partial.add(session)

    def end_replay(self, session: str) -> None:
        self._partial.discard(session)

    def forget(self, session: str) -> None:
        self._cells.pop(session, None)
        self._partial.discard(session)


def check_replayed(session: str, again: Result | None) -> None:
    """Raise SandboxLost unless a replayed cell has completed again."""
    if again is None or not again.completed:
        how = "was lost again" if again is None else again.status
        raise SandboxLost(f"session {session!r} could not be replayed: a cell that had completed {how}")


def retry_pauses() -> Iterator[float]:
    """Yield the seconds between rounds of attempts, without end."""
    pause = RETRY_PAUSE_FIRST_S
    while True:
        yield pause
        pause = min(2 * pause, RETRY_PAUSE_MAX_S)
