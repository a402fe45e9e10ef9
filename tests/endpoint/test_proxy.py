"""An endpoint on real sockets: what passes, where requests go, and what clients get when a replica is lost."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.endpoint.engine import Engine

from muster.endpoint.pool import DRAINING, LEAVING, READY, UNHEALTHY
from muster.sandbox.http import client, codec

Start = Callable[..., Any]
STREAM = {"stream": True}


async def test_requests_and_responses_pass_unchanged(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(engines[0])
    answer = await endpoint.client.ask({"prompt": "x" * 100_000}, "/v1/completions?a=b", x_custom="1")
    assert (answer.status, answer.engine) == (200, "e0")
    ((head, body),) = engines[0].requests
    assert json.loads(body) == {"prompt": "x" * 100_000} and head.path == "/v1/completions?a=b"
    assert head.headers["x-custom"] == "1" and head.headers["host"] == engines[0].address
    assert head.headers["authorization"] == "Bearer t0ken"  # engines may require it as their API key
    assert answer.headers["x-muster-replica"] == engines[0].address


async def test_a_response_that_ends_with_its_connection_passes(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(engines[0])
    answer = await endpoint.client.ask(path="/until-close")
    assert (answer.status, answer.body) == (200, b"all of it")


@pytest.mark.parametrize("given", ["", "Bearer wrong", "t0ken", "Basic t0ken"])
async def test_a_request_without_the_token_is_refused(start_endpoint: Start, engines: list[Engine], given: str) -> None:
    endpoint = await start_endpoint(engines[0])
    for path in ("/v1/completions", "/.muster/status"):
        refused = await endpoint.client.ask(path=path, authorization=given)
        assert refused.status == 401 and "MUSTER_ENDPOINT_TOKEN" in refused.error
    assert not engines[0].requests


async def test_64_clients_are_balanced(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(*engines)

    async def ask_often() -> list[str]:
        return [(await endpoint.client.ask()).engine for _ in range(9)]

    found = Counter(engine for answers in await asyncio.gather(*(ask_often() for _ in range(64))) for engine in answers)
    assert found.total() == 576 and all(abs(count - 192) <= 19 for count in found.values())


async def test_tokens_of_a_stream_arrive_one_by_one(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(engines[0])
    async with endpoint.client.stream(STREAM) as (head, chunks):
        assert head.headers["content-type"] == "text/event-stream"
        for token in ("a", "b", "c"):  # each is sent only when the one before has arrived
            engines[0].tokens.put_nowait(token)
            assert await asyncio.wait_for(chunks.__anext__(), 120) == f'data: {{"token": "{token}"}}\n\n'.encode()
        engines[0].tokens.put_nowait(None)
        assert await asyncio.wait_for(chunks.__anext__(), 120) == b"data: [DONE]\n\n"
        assert [data async for data in chunks] == []
    await endpoint.until(lambda: endpoint.server.proxy.status()["outstanding"] == 0)


async def test_a_client_that_leaves_ends_its_request_at_the_replica(
    start_endpoint: Start, engines: list[Engine]
) -> None:
    endpoint = await start_endpoint(engines[0])
    async with endpoint.client.stream(STREAM) as (_, chunks):
        engines[0].tokens.put_nowait("a")
        await asyncio.wait_for(chunks.__anext__(), 120)

    def is_noticed() -> bool:
        engines[0].tokens.put_nowait("b")  # which the client does not read any more
        return bool(endpoint.server.proxy.status()["outstanding"] == 0)

    await endpoint.until(is_noticed)


async def test_a_killed_replica_fails_only_its_requests_and_the_error_says_so(
    start_endpoint: Start, engines: list[Engine]
) -> None:
    endpoint = await start_endpoint(*engines)
    for engine in engines:
        engine.hold.clear()
    asked = [asyncio.ensure_future(endpoint.client.ask()) for _ in range(6)]
    await endpoint.until(lambda: all(len(engine.requests) == 2 for engine in engines))
    engines[1].kill()
    for engine in engines:
        engine.hold.set()
    answers = await asyncio.wait_for(asyncio.gather(*asked), 120)
    assert Counter(answer.status for answer in answers) == {200: 4, 502: 2}
    for lost in (answer for answer in answers if answer.status == 502):
        assert lost.error.startswith(f"replica {engines[1].address} of endpoint chat was lost while it processed this")
        assert "not repeated" in lost.error and lost.headers["x-muster-replica"] == engines[1].address
    assert sum(len(engine.requests) for engine in engines) == 6  # nothing was executed twice
    later = [await endpoint.client.ask() for _ in range(6)]
    assert Counter(answer.engine for answer in later) == {"e0": 3, "e2": 3}


async def test_a_stream_of_a_killed_replica_ends_with_an_error_event_and_is_cut_off(
    start_endpoint: Start, engines: list[Engine]
) -> None:
    endpoint = await start_endpoint(engines[0])
    received = b""
    async with endpoint.client.stream(STREAM) as (_, chunks):
        engines[0].tokens.put_nowait("a")
        received += await asyncio.wait_for(chunks.__anext__(), 120)
        engines[0].kill()
        with pytest.raises((EOFError, ConnectionError)):
            async for data in chunks:
                received += data
    last = [line for line in received.decode().split("\n") if line][-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("replica_lost", 502) and engines[0].address in error["message"]


async def test_a_request_that_could_not_be_sent_goes_to_another_replica(
    start_endpoint: Start, engines: list[Engine]
) -> None:
    endpoint = await start_endpoint(*engines, interval=3600.0)
    engines[0].kill()  # no check has noticed it
    answers = [await endpoint.client.ask() for _ in range(6)]
    assert {answer.engine for answer in answers} == {"e1", "e2"} and {answer.status for answer in answers} == {200}
    assert endpoint.state(engines[0]) == UNHEALTHY


async def test_a_check_notices_a_replica_that_fails_and_one_that_returns(
    start_endpoint: Start, engines: list[Engine]
) -> None:
    endpoint = await start_endpoint(*engines)
    engines[0].health_status = 500
    await endpoint.until(lambda: endpoint.state(engines[0]) == UNHEALTHY)
    assert {(await endpoint.client.ask()).engine for _ in range(4)} == {"e1", "e2"}
    engines[0].health_status = 200
    await endpoint.until(lambda: endpoint.state(engines[0]) == READY)


async def test_a_drained_replica_completes_its_requests_and_gets_no_more(
    start_endpoint: Start, engines: list[Engine]
) -> None:
    endpoint = await start_endpoint(engines[0])
    engines[0].hold.clear()
    begun = asyncio.ensure_future(endpoint.client.ask())
    await asyncio.wait_for(engines[0].begun.wait(), 120)
    await endpoint.set_members(engines[1])
    assert endpoint.state(engines[0]) == LEAVING
    assert json.loads((await endpoint.client.ask(path="/.muster/members")).body) == {"version": 2, "drained": False}
    assert {(await endpoint.client.ask()).engine for _ in range(3)} == {"e1"}
    engines[0].hold.set()
    assert (await begun).engine == "e0"
    assert json.loads((await endpoint.client.ask(path="/.muster/members")).body) == {"version": 2, "drained": True}
    await endpoint.set_members(*engines)
    assert {(await endpoint.client.ask()).engine for _ in range(3)} == {"e0", "e1", "e2"}


async def test_a_replica_that_says_that_it_drains_gets_no_more(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(*engines)
    engines[0].health, engines[0].health_status = {"status": "draining"}, 503
    await endpoint.until(lambda: endpoint.state(engines[0]) == DRAINING)
    assert {(await endpoint.client.ask()).engine for _ in range(4)} == {"e1", "e2"}


async def test_a_request_waits_for_the_weights_that_it_requires(start_endpoint: Start, engines: list[Engine]) -> None:
    for engine in engines:
        engine.health = {"weights_version": 6}
    endpoint = await start_endpoint(*engines, wait=120)
    waiting = asyncio.ensure_future(endpoint.client.ask(x_muster_weights_version=">=7"))
    await endpoint.until(lambda: endpoint.server.proxy.status()["waiting"] == 1)
    assert (await endpoint.client.ask(x_muster_weights_version="6")).status == 200
    engines[2].health = {"weights_version": 7}
    answer = await waiting
    assert (answer.engine, answer.headers["x-muster-weights-version"]) == ("e2", "7")
    assert (await endpoint.client.ask(x_muster_weights_version=">=new")).status == 400


async def test_a_model_is_found_in_the_request(start_endpoint: Start, engines: list[Engine]) -> None:
    engines[1].health = {"object": "list", "data": [{"id": "judge"}]}
    endpoint = await start_endpoint(*engines)
    assert {(await endpoint.client.ask({"model": "judge"})).engine for _ in range(4)} == {"e1"}


async def test_without_a_replica_the_error_says_what_there_is(start_endpoint: Start, engines: list[Engine]) -> None:
    engines[0].health = {"weights_version": 6}
    endpoint = await start_endpoint(engines[0], wait=0.05)
    answer = await endpoint.client.ask(x_muster_weights_version="9")
    assert answer.status == 503 and answer.headers["retry-after"] == "1"
    assert answer.error == (
        "endpoint chat had no ready replica with weights version 9 for 0.05 s (1 replica ready (version 6)); "
        "the request was not executed"
    )
    await endpoint.set_members()
    assert "it has no replicas" in (await endpoint.client.ask()).error


async def test_a_header_keeps_requests_together(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(*engines, sticky_header="x-session-id")
    found = {key: {(await endpoint.client.ask(x_session_id=key)).engine for _ in range(4)} for key in "abcdefgh"}
    assert all(len(names) == 1 for names in found.values()) and len(set.union(*found.values())) > 1
    assert len({(await endpoint.client.ask()).engine for _ in range(6)}) == 3


async def test_a_cookie_keeps_requests_together(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(*engines, sticky_cookie="pool")
    first = await endpoint.client.ask()
    cookie = first.headers["set-cookie"].partition(";")[0]
    again = [await endpoint.client.ask(cookie=f"a=b; {cookie}") for _ in range(4)]
    assert {answer.engine for answer in again} == {first.engine} and "set-cookie" not in again[0].headers


async def test_a_connection_serves_several_requests(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(*engines)
    reader, writer = await client.connect(f"http://127.0.0.1:{endpoint.server.port}", 120)
    for _ in range(5):
        writer.write(codec.request_bytes("GET", "/x", {"authorization": "Bearer t0ken"}, b""))
        head, _ = await asyncio.wait_for(client.read_response(reader), 120)
        assert head.status == 200
    writer.close()


async def test_an_endpoint_that_is_stopped_completes_its_requests(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(engines[0])
    engines[0].hold.clear()
    begun = asyncio.ensure_future(endpoint.client.ask())
    await asyncio.wait_for(engines[0].begun.wait(), 120)
    closing = asyncio.ensure_future(endpoint.server.close())
    engines[0].hold.set()
    assert (await begun).status == 200
    await closing


async def test_the_status_counts(start_endpoint: Start, engines: list[Engine]) -> None:
    endpoint = await start_endpoint(*engines)
    for _ in range(3):
        await endpoint.client.ask()
    status = json.loads((await endpoint.client.ask(path="/.muster/status")).body)
    assert (status["requests"], status["failed"], status["outstanding"], status["waiting"]) == (3, 0, 0, 0)
    assert [(one["state"], one["requests"]) for one in status["replicas"]] == [("ready", 1)] * 3
