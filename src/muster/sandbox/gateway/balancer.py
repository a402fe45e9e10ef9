"""The gateway's request handler: forwards each request to one sandbox of the cluster.

A request with a session or workspace goes only to the node that owns the key on the hash ring. Other requests go to the
node with the fewest outstanding requests of this gateway; nodes that recently refused a connection are skipped. A
request is tried at another node only as long as nothing of it was sent.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

from muster.sandbox import models
from muster.sandbox.api import nemo_skills
from muster.sandbox.api.sender import USER_HEADER
from muster.sandbox.gateway.peers import PeerList, address_of
from muster.sandbox.hash_ring import Ring
from muster.sandbox.http import client, codec, origin
from muster.sandbox.http.client import IdleConnections, Streams
from muster.sandbox.http.codec import HttpRequest, HttpResponse, RequestHead

KIND = "python"  # in /gateway and /health
OWN_PATHS = ("/health", "/metrics", "/load")
RESPONSE_HEADERS = ("content-type", "retry-after", "x-muster-node", "x-muster-usage")  # passed on to the client
# Not passed on to the node: headers of one connection, and the token, which only the gateway sends.
DROPPED_HEADERS = ("authorization", "connection", "content-length", "expect", "host", "keep-alive", "transfer-encoding")
CONNECT_TIMEOUT_S = 2.0
STREAMED_LENGTH = 1 << 20  # bytes of a response that is passed on in parts
UNREACHABLE_S = 5.0  # for which a node that could not be reached gets no requests without a key
IDLE_CONNECTIONS_MAX = 64  # to all nodes together
OVERVIEW_TIMEOUT_S = 2.0  # for the response of one node
OVERVIEW_CONCURRENCY = 128  # nodes asked at the same time: each takes an open file


class Balancer:
    """A handler of http/server.py. `own` is this node's endpoint between nodes."""

    def __init__(self, own: str, token: str, own_first: bool) -> None:
        """`own_first`: requests without a key stay on this node, since its programs share one scratch directory."""
        self._own, self._token, self._own_first = own, token, own_first
        self._outstanding: Counter[str] = Counter()
        self._unreachable: dict[str, float] = {}  # until when
        self._next = 0  # index of the endpoint that gets the next request if all are free
        self._idle = IdleConnections(IDLE_CONNECTIONS_MAX)
        self._endpoints: tuple[str, ...] = (own,)
        self.members, self._ring = PeerList(), Ring((own,))
        self.problem: Callable[[], str | None] = lambda: None  # why the newest list of members is not used

    async def set_members(self, members: PeerList) -> None:
        """Route to these members from now on; an empty list is this node only.

        The ring of thousands of members takes seconds to compute: in a thread, so that requests go on.
        """
        endpoints = members.endpoints or (self._own,)
        ring = await asyncio.get_running_loop().run_in_executor(None, Ring, endpoints)
        self.members, self._endpoints, self._ring = members, endpoints, ring
        # Each node begins with itself: the first requests of all nodes must not meet at one.
        self._next = endpoints.index(self._own) if self._own in endpoints else 0
        current = set(endpoints)
        self._unreachable = {endpoint: until for endpoint, until in self._unreachable.items() if endpoint in current}

    def close(self) -> None:
        self._idle.close()

    def refusal(self, head: RequestHead) -> HttpResponse | None:
        """Reject requests of web pages: clients of this endpoint send no token. Nodes check the body's type."""
        reason = origin.foreign(head.headers)
        return None if reason is None else HttpResponse(403, models.refusal(reason))

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        path = request.path.partition("?")[0]
        if path == "/gateway":
            problem = self.problem()
            facts = {"gateway": KIND, **self.members.to_json()}
            return HttpResponse(200, {**facts, "problem": problem} if problem else facts)
        if path == "/sessions":
            return await self._forward(request, [self._own], "/cluster/sessions")
        return await self._forward(request, self._candidates(request, path), request.path)

    def _candidates(self, request: HttpRequest, path: str) -> Iterable[str]:
        """Return the endpoints to try, in this order, until one can be connected to."""
        if path in OWN_PATHS or path.startswith("/cluster/"):
            return [self._own]
        if key := routing_key(path, request.headers):
            return [self._ring.owner(key)]
        return [self._own] if self._own_first else self._least_busy()

    def _least_busy(self) -> Iterator[str]:
        """Yield free endpoints in turn, then busy ones by their requests; unreachable ones if there are no others.

        It is a generator since with thousands of endpoints the first one is mostly free, and sufficient.
        """
        endpoints, first, now = self._endpoints, self._next, time.monotonic()
        self._next = (first + 1) % len(endpoints)
        rotated = (endpoints[(first + step) % len(endpoints)] for step in range(len(endpoints)))
        busy, unreachable, any_free = [], [], False
        for endpoint in rotated:
            if self._unreachable.get(endpoint, 0.0) > now:
                unreachable.append(endpoint)
            elif endpoint in self._outstanding:
                busy.append(endpoint)
            else:
                any_free = True
                yield endpoint
        yield from sorted(busy or (() if any_free else unreachable), key=lambda endpoint: self._outstanding[endpoint])

    async def _forward(self, request: HttpRequest, candidates: Iterable[str], path: str) -> HttpResponse:
        headers = {name: value for name, value in request.headers.items() if name not in DROPPED_HEADERS}
        headers.update({"host": "sandbox", "authorization": f"Bearer {self._token}", USER_HEADER: str(request.user)})
        data = codec.request_bytes(request.method, path, headers, request.body)
        endpoint = self._own
        for endpoint in candidates:
            self._begin(endpoint)
            try:
                streams = self._idle.acquire(endpoint) or await self._connect(endpoint)
                if streams is None:
                    continue
                return await self._exchange(endpoint, streams, data)
            finally:
                self._end(endpoint)
        node = address_of(endpoint)
        body = {**models.refusal(nemo_skills.unreachable_message(node)), "reason": "unreachable"}
        return HttpResponse(503, body, {"X-Muster-Member": node})

    def _begin(self, endpoint: str) -> None:
        self._outstanding[endpoint] += 1

    def _end(self, endpoint: str) -> None:
        self._outstanding[endpoint] -= 1
        if self._outstanding[endpoint] <= 0:
            del self._outstanding[endpoint]

    async def _connect(self, endpoint: str) -> Streams | None:
        try:
            streams = await client.connect(endpoint, CONNECT_TIMEOUT_S)
        except OSError:
            self._unreachable[endpoint] = time.monotonic() + UNREACHABLE_S
            return None
        self._unreachable.pop(endpoint, None)
        return streams

    async def _exchange(self, endpoint: str, streams: Streams, data: bytes) -> HttpResponse:
        """Send the request and return the response; from here on the program may have been run."""
        reader, writer = streams
        member = {"X-Muster-Member": address_of(endpoint)}
        try:
            writer.write(data)
            head = await client.read_head(reader)
            passed = {name: head.headers[name] for name in RESPONSE_HEADERS if name in head.headers} | member
            if head.is_chunked:
                self._begin(endpoint)  # until the stream ends
                return HttpResponse(head.status, self._stream(endpoint, streams), passed)
            if head.length > STREAMED_LENGTH:
                self._begin(endpoint)
                return HttpResponse(head.status, self._stream_length(endpoint, streams, head.length), passed)
            body = await reader.readexactly(head.length)
        except (OSError, EOFError, ValueError):
            writer.close()
            lost = {**models.refusal(nemo_skills.lost_message(address_of(endpoint))), "reason": "lost"}
            return HttpResponse(502, lost, member)
        except BaseException:
            writer.close()
            raise
        if head.is_last:
            writer.close()
        else:
            self._idle.release(endpoint, streams)
        return HttpResponse(head.status, body, passed)

    async def _stream(self, endpoint: str, streams: Streams) -> AsyncIterator[bytes]:
        """Yield the body of a chunked response; an error here cuts off the client's response too."""
        try:
            async for data in client.read_chunks(streams[0]):
                yield data
        finally:
            self._end(endpoint)
            streams[1].close()

    async def _stream_length(self, endpoint: str, streams: Streams, length: int) -> AsyncIterator[bytes]:
        """Yield a long body of this length as it arrives, so that no more than a part of it is kept here."""
        try:
            while length:
                data = await streams[0].read(min(length, client.READ_SIZE))
                if not data:
                    raise EOFError("the connection was closed within a response")
                length -= len(data)
                yield data
        finally:
            self._end(endpoint)
            streams[1].close()

    # -- all nodes ----------------------------------------------------------------------------------------------------

    async def overview(self, path: str, headers: dict[str, str]) -> dict[str, Any]:
        """Return the JSON that each node answers to a GET, by endpoint; {"error": reason} for nodes that do not."""
        endpoints, free = self._endpoints, asyncio.Semaphore(OVERVIEW_CONCURRENCY)

        async def ask(endpoint: str) -> Any:
            async with free:
                return await self._ask(endpoint, path, headers)

        return dict(zip(endpoints, await asyncio.gather(*map(ask, endpoints))))

    async def _ask(self, endpoint: str, path: str, given: dict[str, str]) -> Any:
        headers = {**given, "host": "sandbox", "authorization": f"Bearer {self._token}"}
        try:
            reader, writer = await client.connect(endpoint, CONNECT_TIMEOUT_S)
            try:
                writer.write(codec.request_bytes("GET", path, headers, b""))
                return json.loads((await asyncio.wait_for(client.read_response(reader), OVERVIEW_TIMEOUT_S))[1])
            finally:
                writer.close()
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            return {"error": str(error) or type(error).__name__}


def routing_key(path: str, headers: dict[str, str]) -> bytes:
    """Return the session or workspace that binds a request to one node; empty if it can run anywhere."""
    for prefix in ("/sessions/", "/workspaces/"):
        if path.startswith(prefix) and len(path) > len(prefix):
            return unquote_to_bytes(path[len(prefix) :])
    return (headers.get("x-session-id") or headers.get("x-workspace-id") or "").encode()
