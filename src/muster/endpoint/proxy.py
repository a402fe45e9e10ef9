"""The request handler of an endpoint: forwards each request to one replica and passes the response on as it arrives.

A request is sent to another replica only if no connection could be made, so nothing of it was sent. After that the
replica may have executed it: if the connection is lost, the client gets an error that names the replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from muster.endpoint.exchange import body_length, connect_replica, keeps_connection, read_body
from muster.endpoint.health import HealthChecks
from muster.endpoint.pool import PoolReplica, ReplicaPool, ReplicaWish, VersionRange
from muster.endpoint.settings import EndpointSettings
from muster.sandbox.gateway.peers import PeerList
from muster.sandbox.http import client, codec
from muster.sandbox.http.client import IdleConnections, Streams
from muster.sandbox.http.codec import HttpRequest, HttpResponse, RequestHead, ResponseHead

OWN_PREFIX = "/.muster/"  # paths that the proxy answers itself
STATUS_PATH, MEMBERS_PATH = f"{OWN_PREFIX}status", f"{OWN_PREFIX}members"
REPLICA_HEADER = "x-muster-replica"  # of a response: the replica that sent it
VERSION_HEADER = "x-muster-weights-version"  # of a request: the versions it accepts; of a response: the replica's
BUFFERED_MAX_BYTES = 1 << 20  # a longer response is passed on as it arrives
IDLE_CONNECTIONS_MAX = 512
# uvicorn closes idle connections after 5 s. A request that is sent just then is lost, and may not be repeated.
REPLICA_IDLE_S = 2.0
CONNECTION_HEADERS = frozenset(  # of one connection: not passed on
    [
        *("connection", "content-length", "expect", "host", "keep-alive"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    ]
)
EVENT_STREAM = "text/event-stream"


class EndpointProxy:
    """A handler of sandbox/http/server.py."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self.pool = ReplicaPool(first=settings.node_index)
        self._changed = asyncio.Event()  # replaced at each change of a replica's state
        self._checks = HealthChecks(settings.health, settings.token, settings.check_interval_s, self._notify)
        self._idle = IdleConnections(IDLE_CONNECTIONS_MAX, REPLICA_IDLE_S)
        self._expected = f"Bearer {settings.token}".encode()
        self._waiting = self._requests = self._failures = 0
        self.members_version = 0  # of the newest list whose new members were checked

    async def set_members(self, members: PeerList) -> None:
        """Replace the members; return when each new one was checked once."""
        joined = self.pool.set_members(members.endpoints)
        self._checks.forget(set(self._checks.urls) - set(members.endpoints))
        checked = [self._checks.watch(replica) for replica in joined]
        await asyncio.gather(*(first.wait() for first in checked))
        self.members_version = members.version
        self._notify()

    async def close(self) -> None:
        await self._checks.close()
        self._idle.close()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- requests -----------------------------------------------------------------------------------------------------

    def refusal(self, head: RequestHead) -> HttpResponse | None:
        """Refuse a request without the token; OpenAI's clients send their API key in this way."""
        given = head.headers.get("authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(given, self._expected):
            return None
        message = "this endpoint needs the run's token: use the value of MUSTER_ENDPOINT_TOKEN as the API key"
        return _error(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        path = request.path.partition("?")[0]
        if path.startswith(OWN_PREFIX):
            return self._own_response(path)
        self._requests += 1
        try:
            wish = self._wish(request)
        except ValueError as error:
            return _error(400, "invalid_version", f"the header {VERSION_HEADER}: {error}")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.wait
        while True:
            changed = self._changed
            replica = self.pool.choose(wish)
            if replica is not None:
                response = await self._send(request, replica, wish)
                if response is not None:
                    return response
                if loop.time() < deadline:
                    continue
            elif await self._wait(changed, deadline - loop.time()):
                continue
            self._failures += 1
            return self._unavailable(wish)

    async def _wait(self, changed: asyncio.Event, timeout_s: float) -> bool:
        """Wait until a replica changes; return False after the timeout."""
        self._waiting += 1
        try:
            await asyncio.wait_for(changed.wait(), max(0.0, timeout_s))
            return True
        except asyncio.TimeoutError:
            return False
        finally:
            self._waiting -= 1

    def _wish(self, request: HttpRequest) -> ReplicaWish:
        settings, headers = self._settings, request.headers
        versions = headers.get(VERSION_HEADER)
        return ReplicaWish(
            model=_model(request) if self.pool.names_models else None,
            versions=VersionRange.parse(versions) if versions is not None else None,
            key=headers.get(settings.sticky_header, "").encode() if settings.sticky_header is not None else b"",
            replica_id=_cookie(headers.get("cookie", ""), settings.sticky_cookie),
        )

    async def _send(self, request: HttpRequest, replica: PoolReplica, wish: ReplicaWish) -> HttpResponse | None:
        """Send the request to this replica; return None if it cannot be connected to."""
        self.pool.begin(replica)
        try:
            streams = self._idle.acquire(replica.url)
            if streams is None:
                streams = await self._connect(replica)
            return None if streams is None else await self._exchange(request, replica, streams, wish)
        finally:
            self.pool.end(replica)

    async def _connect(self, replica: PoolReplica) -> Streams | None:
        try:
            return await connect_replica(replica.url)
        except OSError as error:
            replica.fail(f"it could not be connected to: {error}")
            self._checks.check_soon(replica)
            return None

    async def _exchange(
        self, request: HttpRequest, replica: PoolReplica, streams: Streams, wish: ReplicaWish
    ) -> HttpResponse:
        """Send the request and return the response; from here on the replica may have executed it."""
        reader, writer = streams
        replica.requests += 1
        try:
            writer.write(_forwarded(request, replica))
            head = await client.read_head(reader)
            length = body_length(head)
            headers = self._response_headers(head, replica, wish)
            if not replica.apply_status(head.status):
                self._checks.check_soon(replica)
            if length is None or length > BUFFERED_MAX_BYTES:
                self.pool.begin(replica)  # until the stream ends
                return HttpResponse(head.status, self._stream(head, replica, streams), headers)
            body = await reader.readexactly(length)
        except (OSError, EOFError, ValueError) as error:
            writer.close()
            return _error(502, "replica_lost", self._lost(replica, error), {REPLICA_HEADER: _address(replica)})
        except BaseException:
            writer.close()
            raise
        self._release(head, replica, streams)
        return HttpResponse(head.status, body, headers)

    def _release(self, head: ResponseHead, replica: PoolReplica, streams: Streams) -> None:
        if keeps_connection(head):
            self._idle.release(replica.url, streams)
        else:
            streams[1].close()

    async def _stream(self, head: ResponseHead, replica: PoolReplica, streams: Streams) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. If the replica is lost, report it in a stream of events, and break off."""
        is_complete = False
        try:
            async for data in read_body(streams[0], head):
                yield data
            is_complete = True
        except (OSError, EOFError, ValueError) as error:
            message = self._lost(replica, error)
            if head.headers.get("content-type", "").startswith(EVENT_STREAM):
                yield f"\n\ndata: {json.dumps(_error_body(502, 'replica_lost', message))}\n\n".encode()
            raise ReplicaLost(message) from None
        finally:
            self.pool.end(replica)
            if is_complete:
                self._release(head, replica, streams)
            else:
                streams[1].close()

    def _lost(self, replica: PoolReplica, error: Exception) -> str:
        """Count a lost request and return the error for its client."""
        replica.failures += 1
        self._failures += 1
        replica.fail("a connection was lost within a request")
        self._checks.check_soon(replica)
        self._notify()
        return (
            f"replica {_address(replica)} of endpoint {self._settings.name} was lost while it processed this request "
            f"({str(error) or type(error).__name__}); it may have executed the request, so the request was not repeated"
        )

    def _response_headers(self, head: ResponseHead, replica: PoolReplica, wish: ReplicaWish) -> dict[str, str]:
        headers = {name: value for name, value in head.headers.items() if name not in CONNECTION_HEADERS}
        headers[REPLICA_HEADER] = _address(replica)
        if replica.weights_version is not None:
            headers[VERSION_HEADER] = replica.weights_version
        cookie = self._settings.sticky_cookie
        if cookie is not None and wish.replica_id != replica.id and "set-cookie" not in headers:
            headers["set-cookie"] = f"{cookie}={replica.id}; Path=/; HttpOnly"
        return headers

    def _unavailable(self, wish: ReplicaWish) -> HttpResponse:
        wanted = [f"model {wish.model!r}"] if wish.model is not None else []
        wanted += [f"weights version {wish.versions}"] if wish.versions is not None else []
        which = f" with {' and '.join(wanted)}" if wanted else ""
        message = (
            f"endpoint {self._settings.name} had no ready replica{which} for {self._settings.wait:g} s "
            f"({self.pool.describe()}); the request was not executed"
        )
        return _error(503, "no_replica", message, {"Retry-After": "1"})

    # -- status -------------------------------------------------------------------------------------------------------

    def _own_response(self, path: str) -> HttpResponse:
        if path == STATUS_PATH:
            return HttpResponse(200, self.status())
        if path == MEMBERS_PATH:
            return HttpResponse(200, {"version": self.members_version, "drained": self.pool.is_drained})
        return _error(404, "not_found", f"this endpoint has no {path}; it has {STATUS_PATH} and {MEMBERS_PATH}")

    def status(self) -> dict[str, Any]:
        """Return the load of this node's proxy, and the replicas as it knows them."""
        replicas = [replica.to_json() for replica in self.pool.replicas.values()]
        return {
            "outstanding": sum(one["outstanding"] for one in replicas),
            "waiting": self._waiting,
            "requests": self._requests,
            "failed": self._failures,
            "replicas": replicas,
        }


class ReplicaLost(ConnectionError):
    """A replica was lost within a response that has begun; the connection to the client breaks off."""


def _forwarded(request: HttpRequest, replica: PoolReplica) -> bytes:
    named = {option.strip().lower() for option in request.headers.get("connection", "").split(",")}
    dropped = CONNECTION_HEADERS | named
    headers = {name: value for name, value in request.headers.items() if name not in dropped}
    headers["host"] = urlsplit(replica.url).netloc
    return codec.request_bytes(request.method, request.path, headers, request.body)


def _address(replica: PoolReplica) -> str:
    return urlsplit(replica.url).netloc


def _model(request: HttpRequest) -> str | None:
    """Return the model that a request in OpenAI's format names."""
    with contextlib.suppress(ValueError):
        record = request.json() if request.body[:1] == b"{" else None
        model = record.get("model") if isinstance(record, dict) else None
        return model if isinstance(model, str) else None
    return None


def _cookie(header: str, wanted: str | None) -> str | None:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for name, _, value in pairs if name == wanted), None)


def _error_body(status: int, kind: str, message: str) -> dict[str, Any]:
    """Return an error in the format of OpenAI's API, whose clients show the message."""
    return {"error": {"message": message, "type": kind, "code": status}}


def _error(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status, _error_body(status, kind, message), headers or {})
