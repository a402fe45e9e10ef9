"""The gateway's request handler: which node a request goes to, and what passes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator

import pytest
from tests.sandbox.http_messages import AMBIGUOUS

from muster.sandbox.gateway.balancer import Balancer, routing_key
from muster.sandbox.gateway.peers import PeerList
from muster.sandbox.hash_ring import Ring
from muster.sandbox.http import codec
from muster.sandbox.http.codec import HttpRequest, HttpResponse, RequestHead


def test_what_a_request_is_kept_together_by() -> None:
    assert routing_key("/execute", {}) == b""
    assert routing_key("/execute", {"x-session-id": "a", "x-workspace-id": "b"}) == b"a"
    assert routing_key("/execute", {"x-workspace-id": "b"}) == b"b"
    assert routing_key("/sessions/a%20b", {"x-session-id": "c"}) == b"a b"
    assert routing_key("/sessions/", {}) == b"" and routing_key("/workspaces/w", {}) == b"w"


@pytest.mark.parametrize("lengths", AMBIGUOUS)
async def test_a_gateway_does_not_pass_on_a_response_whose_length_is_ambiguous(lengths: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + lengths + b"\r\n1\r\na\r\n0\r\n\r\n")

    member = await asyncio.start_server(respond, "127.0.0.1", 0)
    balancer = Balancer(f"http://127.0.0.1:{member.sockets[0].getsockname()[1]}", "token", own_first=False)
    response = await asyncio.wait_for(balancer(HttpRequest("GET", "/health", {}, b"")), 120)
    assert (response.status, response.content["reason"]) == (502, "lost")
    balancer.close()
    member.close()


# -- nodes that note what they get ------------------------------------------------------------------------------------


class Node:
    """A member that notes requests and answers them with its name, or as it is told."""

    def __init__(self, name: str) -> None:
        self.name, self.requests = name, list[tuple[RequestHead, bytes]]()
        self.answer: bytes | None = None  # instead of its name; empty: it breaks off
        self.release = asyncio.Event()
        self.release.set()
        self.begun = asyncio.Event()

    async def open(self) -> Node:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                data = await reader.readuntil(codec.HEAD_END)
                head, _ = codec.parse_request_head(data[: -len(codec.HEAD_END)])
                body = await reader.readexactly(codec.request_body_length(head.headers) or 0)
                self.requests.append((head, body))
                self.begun.set()
                await self.release.wait()
                if self.answer == b"":
                    break
                headers = {"x-muster-node": self.name, "x-other": "1"}
                named = HttpResponse(200, {"node": self.name}, headers)
                writer.write(self.answer or codec.response_bytes(named, False))
        writer.close()

    def close(self) -> None:
        self._server.close()

    @property
    def paths(self) -> list[str]:
        return [head.path for head, _ in self.requests]


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    made = [await Node(f"n{number}").open() for number in range(3)]
    yield made
    for node in made:
        node.close()


@pytest.fixture
async def balancer(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Balancer]:
    """A balancer of the three nodes, itself on the first. On a busy machine a node may answer slowly."""
    for name in ("CONNECT_TIMEOUT_S", "OVERVIEW_TIMEOUT_S"):
        monkeypatch.setattr(f"muster.sandbox.gateway.balancer.{name}", 120.0)
    made = Balancer(nodes[0].endpoint, "t0p", own_first=False)
    await made.set_members(PeerList(7, tuple(sorted(node.endpoint for node in nodes))))
    yield made
    made.close()


async def ask(balancer: Balancer, path: str = "/execute", body: bytes = b"{}", **headers: str) -> HttpResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await asyncio.wait_for(balancer(HttpRequest("POST", path, named, body, os.getuid())), 120)


def node_of(response: HttpResponse) -> str:
    assert isinstance(response.content, bytes)
    return str(json.loads(response.content)["node"])


async def test_requests_without_a_key_go_to_free_nodes_in_turn(balancer: Balancer) -> None:
    found = [node_of(await ask(balancer)) for _ in range(6)]
    assert found[0] == "n0" and sorted(found) == ["n0", "n0", "n1", "n1", "n2", "n2"]


async def test_a_busy_node_is_passed_by(balancer: Balancer, nodes: list[Node]) -> None:
    nodes[0].release.clear()
    waiting = asyncio.ensure_future(ask(balancer))
    await asyncio.wait_for(nodes[0].begun.wait(), 120)
    assert {node_of(await ask(balancer)) for _ in range(4)} == {"n1", "n2"}
    nodes[0].release.set()
    assert node_of(await waiting) == "n0"


async def test_a_key_goes_to_its_owner_only_even_if_that_cannot_be_reached(
    balancer: Balancer, nodes: list[Node]
) -> None:
    ring = Ring([node.endpoint for node in nodes])
    owner = next(node for node in nodes if node.endpoint == ring.owner(b"s"))
    for _ in range(3):
        response = await ask(balancer, x_session_id="s")
        assert node_of(response) == owner.name
        assert response.headers == {
            "content-type": "application/json",
            "x-muster-node": owner.name,
            "X-Muster-Member": owner.endpoint[len("http://") :],
        }
    await balancer.set_members(PeerList(8, ("http://127.0.0.1:9",)))
    response = await ask(balancer, x_session_id="s")
    assert (response.status, response.content["reason"]) == (503, "unreachable")
    assert response.headers == {"X-Muster-Member": "127.0.0.1:9"}


async def test_a_request_that_could_not_be_sent_is_sent_to_the_next_node(balancer: Balancer, nodes: list[Node]) -> None:
    await balancer.set_members(PeerList(8, ("http://127.0.0.1:9", nodes[1].endpoint)))
    assert {node_of(await ask(balancer)) for _ in range(4)} == {"n1"}
    assert "http://127.0.0.1:9" in balancer._unreachable


async def test_a_request_that_was_sent_is_not_sent_again(balancer: Balancer, nodes: list[Node]) -> None:
    for node in nodes:
        node.answer = b""
    response = await ask(balancer)
    assert (response.status, response.content["reason"]) == (502, "lost")
    assert sum(len(node.requests) for node in nodes) == 1


async def test_the_token_and_the_client_s_own_headers_are_passed_on(balancer: Balancer, nodes: list[Node]) -> None:
    dropped = {"x_muster_user": "0815", "authorization": "Bearer mine", "host": "localhost", "expect": "100-continue"}
    await ask(balancer, "/execute?x=1", b'{"a": 1}', x_mine="1", **dropped)
    (head, body), *_ = nodes[0].requests
    assert (head.method, head.path, body) == ("POST", "/execute?x=1", b'{"a": 1}')
    assert head.headers == {
        "authorization": "Bearer t0p",
        "host": "sandbox",
        "x-mine": "1",
        "x-muster-user": str(os.getuid()),
        "content-length": "8",
    }


async def test_a_chunked_response_is_passed_on_as_it_comes(balancer: Balancer, nodes: list[Node]) -> None:
    nodes[0].answer = codec.stream_head_bytes(HttpResponse(200, None), False) + b"2\r\na\n\r\n2\r\nb\n\r\n0\r\n\r\n"
    response = await ask(balancer, "/batch")
    assert balancer._outstanding[nodes[0].endpoint] == 1  # until the stream ends
    assert b"".join([data async for data in response.content]) == b"a\nb\n"
    assert not balancer._outstanding


async def test_what_is_about_this_node_is_answered_by_this_node(balancer: Balancer, nodes: list[Node]) -> None:
    for path in ("/health", "/metrics", "/load", "/cluster/load", "/sessions"):
        assert node_of(await ask(balancer, path)) == "n0"
    assert nodes[0].paths == ["/health", "/metrics", "/load", "/cluster/load", "/cluster/sessions"]
    response = await ask(balancer, "/gateway")
    endpoints = sorted(node.endpoint for node in nodes)
    assert response.content == {"gateway": "python", "version": 7, "endpoints": endpoints}
    balancer.problem = lambda: "the file is broken"
    assert (await ask(balancer, "/gateway")).content["problem"] == "the file is broken"


async def test_with_a_shared_scratch_requests_stay_on_this_node(nodes: list[Node]) -> None:
    balancer = Balancer(nodes[0].endpoint, "t0p", own_first=True)
    await balancer.set_members(PeerList(7, tuple(node.endpoint for node in nodes)))
    assert {node_of(await ask(balancer)) for _ in range(4)} == {"n0"}
    balancer.close()


async def test_without_members_this_node_is_alone(balancer: Balancer) -> None:
    await balancer.set_members(PeerList(8, ()))
    assert {node_of(await ask(balancer)) for _ in range(3)} == {"n0"}


async def test_all_nodes_are_asked_and_those_that_do_not_answer_named(balancer: Balancer, nodes: list[Node]) -> None:
    nodes[1].answer = codec.response_bytes(HttpResponse(200, "not json"), False)
    await balancer.set_members(PeerList(8, (nodes[0].endpoint, nodes[1].endpoint, "http://127.0.0.1:9")))
    found = await balancer.overview("/load", {})
    assert found.pop(nodes[0].endpoint) == {"node": "n0"} and nodes[0].paths == ["/load"]
    assert sorted(found) == sorted([nodes[1].endpoint, "http://127.0.0.1:9"])
    assert all(answer["error"] for answer in found.values())


def test_requests_of_web_pages_are_refused_by_their_head() -> None:
    balancer = Balancer("http://127.0.0.1:9", "t0p", own_first=False)
    assert balancer.refusal(RequestHead("GET", "/health", {"host": "localhost"})) is None
    refused = balancer.refusal(RequestHead("GET", "/health", {"host": "evil.example"}))
    assert refused is not None and refused.status == 403 and refused.content["process_status"] == "error"
