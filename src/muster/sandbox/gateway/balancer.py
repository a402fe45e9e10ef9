"""The gateway without nginx: hands requests to the sandboxes of the cluster by the same rules.

What names a session or a workspace goes to the node that the ring gives it, and to no other; everything else to the one
with the fewest requests of ours, passing by those that could not be reached lately. A request goes to another
node only while nothing of it was sent.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

from muster.sandbox.api import nemo_skills
from muster.sandbox.gateway import nginx_config
from muster.sandbox.gateway.peers import PeerList, address_of
from muster.sandbox.hash_ring import Ring
from muster.sandbox.http import client, codec, origin
from muster.sandbox.http.client import IdleConnections, Streams
from muster.sandbox.http.codec import HttpRequest, HttpResponse, RequestHead

OWN = ("/health", "/metrics", "/load")
PASSED_ON = ("content-type", "retry-after", "x-muster-node", "x-muster-usage")
NOT_PASSED_ON = ("authorization", "connection", "content-length", "expect", "host", "keep-alive", "transfer-encoding")
OVERVIEW_S = 2.0  # for one node's answer
ASKED_AT_ONCE = 128  # of all nodes: each takes an open file


class Balancer:
    """A handler for http.py. `own` is this node's own endpoint between nodes."""

    def __init__(self, own: str, token: str, own_first: bool) -> None:
        self._own, self._token, self._own_first = own, token, own_first
        self._outstanding: Counter[str] = Counter()
        self._down: dict[str, float] = {}
        self._turn = 0
        self._idle = IdleConnections(nginx_config.KEPT)
        self._endpoints: tuple[str, ...] = (own,)
        self.members, self._ring = PeerList(), Ring((own,))
        self.problem: Callable[[], str | None] = lambda: None  # why the gateway is not as it should be

    async def take(self, members: PeerList) -> None:
        """Serve these members from now on. Thousands of them take seconds to compute, beside the event loop."""
        endpoints = members.endpoints or (self._own,)
        ring = await asyncio.get_running_loop().run_in_executor(None, Ring, endpoints)
        self.members, self._endpoints, self._ring = members, endpoints, ring
        self._turn = endpoints.index(self._own) if self._own in endpoints else 0
        there = set(endpoints)
        self._down = {endpoint: until for endpoint, until in self._down.items() if endpoint in there}

    def close(self) -> None:
        self._idle.close()

    def refusal(self, head: RequestHead) -> HttpResponse | None:
        """Our clients need no token: web pages are kept out here. The type of a body is looked at where it goes to."""
        words = origin.foreign(head.headers)
        return None if words is None else HttpResponse(403, nemo_skills.refusal(words))

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        path = request.path.partition("?")[0]
        if path == "/gateway":
            problem = self.problem()
            found = {"gateway": "python", **self.members.to_json()}
            return HttpResponse(200, {**found, "problem": problem} if problem else found)
        if path == "/sessions":
            return await self._forward(request, [self._own], "/cluster/sessions")
        return await self._forward(request, self._order(request, path), request.path)

    def _order(self, request: HttpRequest, path: str) -> Iterable[str]:
        """Whom to ask, one after the other."""
        if path in OWN or path.startswith("/cluster/"):
            return [self._own]
        if key := key_of(path, request.headers):
            return [self._ring.owner(key)]
        return [self._own] if self._own_first else self._least_busy()

    def _least_busy(self) -> Iterator[str]:
        """Those with the fewest requests of ours first, in turn; of thousands mostly the first is free, and enough."""
        endpoints, turn, now = self._endpoints, self._turn, time.monotonic()
        self._turn = (turn + 1) % len(endpoints)
        turns = (endpoints[(turn + step) % len(endpoints)] for step in range(len(endpoints)))
        busy, down, tried = [], [], False
        for endpoint in turns:
            if self._down.get(endpoint, 0.0) > now:
                down.append(endpoint)
            elif endpoint in self._outstanding:
                busy.append(endpoint)
            else:
                tried = True
                yield endpoint
        yield from sorted(busy or (() if tried else down), key=lambda endpoint: self._outstanding[endpoint])

    async def _forward(self, request: HttpRequest, order: Iterable[str], path: str) -> HttpResponse:
        headers = {name: value for name, value in request.headers.items() if name not in NOT_PASSED_ON}
        headers.update({"host": "sandbox", "authorization": f"Bearer {self._token}"})
        data = codec.request_bytes(request.method, path, headers, request.body)
        endpoint = self._own
        for endpoint in order:
            self._begin(endpoint)
            try:
                found = self._idle.acquire(endpoint) or await self._connect(endpoint)
                if found is None:
                    continue
                return await self._exchange(endpoint, found, data)
            finally:
                self._end(endpoint)
        where = address_of(endpoint)
        body = {**nemo_skills.refusal(nemo_skills.unreached(where)), "reason": "unreachable"}
        return HttpResponse(503, body, {"X-Muster-Member": where})

    def _begin(self, endpoint: str) -> None:
        self._outstanding[endpoint] += 1

    def _end(self, endpoint: str) -> None:
        self._outstanding[endpoint] -= 1
        if self._outstanding[endpoint] <= 0:
            del self._outstanding[endpoint]

    async def _connect(self, endpoint: str) -> Streams | None:
        try:
            found = await client.connect(endpoint, nginx_config.CONNECT_S)
        except OSError:
            self._down[endpoint] = time.monotonic() + nginx_config.FAIL_S
            return None
        self._down.pop(endpoint, None)
        return found

    async def _exchange(self, endpoint: str, found: Streams, data: bytes) -> HttpResponse:
        """From here on the program may have been run."""
        reader, writer = found
        member = {"X-Muster-Member": address_of(endpoint)}
        try:
            writer.write(data)
            head = await client.read_head(reader)
            passed = {name: head.headers[name] for name in PASSED_ON if name in head.headers} | member
            if head.is_chunked:
                self._begin(endpoint)  # until the stream is over
                return HttpResponse(head.status, self._chunks(endpoint, found), passed)
            body = await reader.readexactly(head.length)
        except (OSError, EOFError, ValueError, LookupError):
            writer.close()
            words = {**nemo_skills.refusal(nemo_skills.broke_off(address_of(endpoint))), "reason": "lost"}
            return HttpResponse(502, words, member)
        except BaseException:
            writer.close()
            raise
        if head.is_last:
            writer.close()
        else:
            self._idle.release(endpoint, found)
        return HttpResponse(head.status, body, passed)

    async def _chunks(self, endpoint: str, found: Streams) -> AsyncIterator[bytes]:
        """A stream that breaks off here breaks off for our client too."""
        try:
            async for data in client.read_chunks(found[0]):
                yield data
        finally:
            self._end(endpoint)
            found[1].close()

    # -- all nodes --------------------------------------------------------------------------------------------------

    async def overview(self, path: str) -> dict[str, Any]:
        """What every node answers to a GET; of one that does not, why."""
        endpoints, free = self._endpoints, asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(endpoint: str) -> Any:
            async with free:
                return await self._ask(endpoint, path)

        return dict(zip(endpoints, await asyncio.gather(*map(ask, endpoints))))

    async def _ask(self, endpoint: str, path: str) -> Any:
        headers = {"host": "sandbox", "authorization": f"Bearer {self._token}"}
        try:
            reader, writer = await client.connect(endpoint, nginx_config.CONNECT_S)
            try:
                writer.write(codec.request_bytes("GET", path, headers, b""))
                return json.loads((await asyncio.wait_for(client.read_response(reader), OVERVIEW_S))[1])
            finally:
                writer.close()
        except (OSError, EOFError, ValueError, LookupError, asyncio.TimeoutError) as error:
            return {"error": str(error) or type(error).__name__}


def key_of(path: str, headers: dict[str, str]) -> bytes:
    """What a request is kept together by; empty when by nothing."""
    for place in ("/sessions/", "/workspaces/"):
        if path.startswith(place) and len(path) > len(place):
            return unquote_to_bytes(path[len(place) :])
    return (headers.get("x-session-id") or headers.get("x-workspace-id") or "").encode("latin-1")
