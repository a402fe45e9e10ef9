"""What a health response says, and when replicas are checked."""

from __future__ import annotations

import asyncio

import pytest
from tests.endpoint.engine import Engine

from muster.endpoint.health import HealthChecks, check_replica, parse_health
from muster.endpoint.pool import LEAVING, READY, UNHEALTHY, PoolReplica


@pytest.mark.parametrize("body", [b"", b"OK", b"[1]", b"null", b"[" * 100_000])
def test_a_body_that_says_nothing_is_healthy_by_its_status(body: bytes) -> None:
    found = parse_health(200, body)
    assert found.ok and not found.models and found.weights_version is None
    assert parse_health(500, body).reason == "its health check has the status 500"


def test_models_are_read_from_each_usual_form() -> None:
    bodies = [b'{"model": "m"}', b'{"models": ["m"]}', b'{"object": "list", "data": [{"id": "m"}, {"id": 3}, 4]}']
    assert {parse_health(200, body).models for body in bodies} == {frozenset({"m"})}


def test_the_version_may_be_a_number_or_text() -> None:
    bodies = (b'{"weights_version": 7}', b'{"weights_version": "7"}', b'{"weights_version": null}')
    assert [parse_health(200, body).weights_version for body in bodies] == ["7", "7", None]


def test_a_draining_server_may_answer_with_an_error() -> None:
    assert parse_health(503, b'{"status": "draining"}').is_draining


async def test_a_replica_without_a_health_path_is_checked_by_a_connection(engines: list[Engine]) -> None:
    assert (await check_replica(engines[0].url, None, "t")).ok
    engines[0].kill()
    assert "health check failed" in (await check_replica(engines[0].url, None, "t")).reason


async def test_a_server_that_speaks_no_http_is_not_healthy() -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert "not an HTTP/1.1 response" in (await check_replica(url, "/health", "t")).reason
    server.close()


async def test_a_failed_replica_is_checked_at_once_and_a_removed_one_not_any_more(engines: list[Engine]) -> None:
    changes: asyncio.Queue[None] = asyncio.Queue()
    checks = HealthChecks("/health", "t", 3600.0, lambda: changes.put_nowait(None))
    replica = PoolReplica(engines[0].url)
    await asyncio.wait_for(checks.watch(replica).wait(), 120)
    await asyncio.wait_for(changes.get(), 120)
    replica.fail("a connection was lost")
    assert replica.state == UNHEALTHY
    checks.check_soon(replica)
    await asyncio.wait_for(changes.get(), 120)
    assert replica.state == READY
    checks.forget([replica.url])
    assert checks.urls == []
    checks.check_soon(replica)
    replica.state = LEAVING
    await checks.close()
