"""What a client sends, what it may send again, and what it makes of the answer: pure, the same for both clients.

Code is never run twice by a retry. A request is sent again only when it is certain that nothing of it was run: no
connection was made, or the server says so (503). A connection that breaks after the request was sent is a SandboxLost:
whether the code ran is not known, and the caller is told. A cell of a session that we know is sent with the demand that
it be there; if it is not, the server runs nothing, and the completed cells are replayed first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from muster.sandbox.hash_ring import Ring

PATIENCE_S = 5.0  # beyond a program's own timeout
CONNECT_S = 5.0
NOT_RUN, SESSION_LOST = 503, 409  # statuses that say that nothing was run
LOST = (502, 504)  # a gateway's, when the node that had the request was lost
MUST_EXIST = "X-Session-Must-Exist"
CHUNK = 128  # programs of a batch in one request: what a lost endpoint can cost
STREAMS = 2  # requests of a batch at a node at once, so that it never waits for the next
MOST_STREAMS = 64
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


class SandboxUnavailable(Exception):
    """No endpoint took the request in time; nothing of it was run."""


class SandboxLost(Exception):
    """The connection broke while the request was being run: whether its code ran is not known."""


class ConnectionRefused(Exception):
    """No connection, so nothing was sent; or nothing was run, by a gateway's own word."""


class SandboxRefused(Exception):
    """The request was wrong, and is so everywhere."""


@dataclass(frozen=True)
class Result:
    """What became of a program or a cell."""

    status: str  # completed, error, failed or timeout
    stdout: str
    stderr: str
    new_session: bool = False
    reason: str | None = None
    usage: dict[str, float] = field(default_factory=dict)
    node: str = ""  # the host that ran it; not known of a batch's

    @property
    def completed(self) -> bool:
        return self.status == "completed"


@dataclass(frozen=True)
class Call:
    """One request."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    timeout: float
    key: str | None = None  # what belongs to one node: a session, or a workspace


@dataclass(frozen=True)
class HttpAnswer:
    """What came back."""

    status: int
    body: bytes
    usage: str | None = None
    node: str | None = None

    @property
    def words(self) -> str:
        """Of a refusal."""
        try:
            return str(json.loads(self.body)["error"])
        except (ValueError, LookupError, TypeError):
            return f"HTTP {self.status}"


def execute_call(
    code: str, language: str, timeout: float, session: str | None, known: bool, more: Mapping[str, Any]
) -> Call:
    """`known`: the session has state that the code may need."""
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
    return Call("/execute", json.dumps(fields).encode(), headers, timeout + PATIENCE_S, key)


def headers(call: Call, endpoint: str, token: str | None) -> dict[str, str]:
    """Return all headers of a call to this endpoint."""
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    return {**call.headers, "Host": urlsplit(endpoint).netloc, **authorization}


def streams_at(gateway: HttpAnswer | None) -> int:
    """How many requests of a batch an endpoint can use at once, by its answer to GET /gateway."""
    try:
        nodes = len(json.loads(gateway.body)["endpoints"]) if gateway is not None and gateway.status == 200 else 1
    except (ValueError, LookupError, TypeError):
        nodes = 1
    return min(STREAMS * max(1, nodes), MOST_STREAMS)


def batch_calls(
    programs: Sequence[str | Mapping[str, Any]], language: str, timeout: float, streams: int
) -> list[tuple[int, Call]]:
    """Requests of a part of the programs each, and the number of its first."""
    calls = []
    chunk = max(1, min(CHUNK, -(-len(programs) // streams)))
    for first in range(0, len(programs), chunk):
        bodies = [
            {"timeout": timeout, "language": language, **({"generated_code": one} if isinstance(one, str) else one)}
            for one in programs[first : first + chunk]
        ]
        body = json.dumps({"requests": bodies}).encode()
        calls.append((first, Call("/batch", body, {"Content-Type": "application/json"}, timeout + PATIENCE_S)))
    return calls


def lost_result(words: str) -> Result:
    """Of a program of a batch whose endpoint was lost while it may have been running."""
    return Result("error", "", f"the sandbox was lost while this ran: {words}\n", reason="lost")


def result_of(answer: HttpAnswer) -> Result:
    """The answer to a program; SandboxRefused when it was the caller's mistake."""
    if answer.status in LOST:
        raise SandboxLost(answer.words)
    if answer.status != 200:
        raise SandboxRefused(answer.words)
    try:
        body = json.loads(answer.body)
    except ValueError:
        raise SandboxLost("the answer is no JSON") from None
    return replace(result_from(body, json.loads(answer.usage) if answer.usage else {}), node=answer.node or "")


def refuse(answer: HttpAnswer) -> None:
    """A batch that was not begun: may somebody else have it?"""
    if answer.status == NOT_RUN:
        raise ConnectionRefused(answer.words)
    if answer.status not in LOST:
        raise SandboxRefused(answer.words)
    raise ValueError(answer.words)  # as any answer that breaks off


def result_from(answer: Mapping[str, Any], usage: dict[str, float]) -> Result:
    return Result(
        answer["process_status"],
        answer["stdout"],
        answer["stderr"],
        answer.get("new_session_created", False),
        answer.get("reason"),
        usage,
    )


class Choice:
    """The order in which endpoints are tried: a session's own first, else in turn; lately unreachable ones last.

    A session that had to be taken to another endpoint stays there: what its own may still have of it is not up to date.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        if not endpoints:
            raise ValueError("a client needs at least one endpoint")
        self.endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._turn = 0
        self._down: dict[str, float] = {}
        self._moved: dict[str, str] = {}
        self._ring: Ring | None = None  # made when a key is first used

    def order(self, key: str | None, now: float) -> Iterator[str]:
        """Yield them as they are needed: of thousands, mostly the first."""
        down = []
        for endpoint in self._preferred(key):
            if self._down.get(endpoint, 0.0) > now:
                down.append(endpoint)
            else:
                yield endpoint
        yield from down

    def _preferred(self, key: str | None) -> Iterator[str]:
        if key is None:
            self._turn = (self._turn + 1) % len(self.endpoints)
            yield from self.endpoints[self._turn :] + self.endpoints[: self._turn]
            return
        moved = self._moved.get(key)
        if moved is not None:
            yield moved
        yield from (endpoint for endpoint in self._walk(key) if endpoint != moved)

    def _walk(self, key: str) -> Iterator[str]:
        if self._ring is None:
            self._ring = Ring(self.endpoints)
        return self._ring.walk(key.encode())

    def failed(self, endpoint: str, now: float) -> None:
        self._down[endpoint] = now + LONGEST_PAUSE_S

    def works(self, endpoint: str, key: str | None = None) -> None:
        self._down.pop(endpoint, None)
        if key is not None and (key in self._moved or next(self._walk(key)) != endpoint):
            self._moved[key] = endpoint

    def forget(self, key: str) -> None:
        self._moved.pop(key, None)


class Histories:
    """The cells of each session that completed, to be replayed when the session was lost."""

    def __init__(self) -> None:
        self._cells: dict[str, list[tuple[str, float]]] = {}
        self._half: set[str] = set()  # whose replay was begun, and broke off unless it goes on

    def of(self, session: str | None) -> list[tuple[str, float]]:
        """Code and timeout of each."""
        return list(self._cells.get(session, ())) if session is not None else []

    def add(self, session: str | None, code: str, timeout: float, result: Result) -> None:
        if session is not None and result.completed:
            self._cells.setdefault(session, []).append((code, timeout))

    def whole(self, session: str) -> bool:
        """Whether what a server has of it, if it has it, is all of it."""
        return session not in self._half

    def begin_replay(self, session: str) -> None:
        self._half.add(session)

    def end_replay(self, session: str) -> None:
        self._half.discard(session)

    def forget(self, session: str) -> None:
        self._cells.pop(session, None)
        self._half.discard(session)


def check_replayed(session: str, again: Result | None) -> None:
    """A cell that had completed must do so again, or the session is another one."""
    if again is None or not again.completed:
        how = "was lost again" if again is None else again.status
        raise SandboxLost(f"session {session!r} could not be replayed: a cell that had completed {how}")


def pauses() -> Any:
    """Between rounds of tries."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)
