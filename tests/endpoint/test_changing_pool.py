"""A pool under load from 64 clients while one replica is killed, one drained, one added, and the weights change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.endpoint.client import Answer
from tests.endpoint.engine import Engine

CLIENTS = 64


async def test_only_requests_in_flight_at_the_killed_replica_fail_while_the_pool_changes(
    start_endpoint: Callable[..., Any], engines: list[Engine]
) -> None:
    added = [await Engine(f"e{number}").open() for number in (3, 4)]
    everyone = [*engines, *added]
    killed, drained, *others = everyone
    for engine in everyone:
        engine.health = {"weights_version": 1}
        engine.seconds = 0.02
    endpoint = await start_endpoint(*everyone[:4])
    answers: list[Answer] = []
    ended = asyncio.Event()

    async def ask_often() -> None:
        while not ended.is_set():
            answers.append(await endpoint.client.ask())

    clients = [asyncio.ensure_future(ask_often()) for _ in range(CLIENTS)]

    async def until_more(count: int = 4 * CLIENTS) -> None:
        wanted = len(answers) + count
        await endpoint.until(lambda: len(answers) >= wanted)

    await until_more()
    killed.hold.clear()
    await endpoint.until(lambda: endpoint.pool.replicas[killed.url].outstanding >= CLIENTS // 8)
    killed.kill()
    killed.hold.set()
    await until_more()
    await endpoint.set_members(drained, *others[:-1])  # as the leader does when an instance is not ready any more
    await endpoint.set_members(*others[:-1])
    await endpoint.until(lambda: endpoint.pool.is_drained)
    drained_at = len(drained.requests)
    await until_more()
    await endpoint.set_members(*others)
    before = {engine.name: len(engine.requests) for engine in others}
    await until_more(12 * CLIENTS)
    found = {engine.name: len(engine.requests) - before[engine.name] for engine in others}
    for engine in others:
        engine.health = {"weights_version": 2}
    await endpoint.until(lambda: {one.weights_version for one in endpoint.pool.replicas.values()} == {"2"})
    await until_more()
    ended.set()
    await asyncio.wait_for(asyncio.gather(*clients), 120)

    statuses = Counter(answer.status for answer in answers)
    assert set(statuses) == {200, 502} and CLIENTS // 8 <= statuses[502] <= CLIENTS // 2, statuses
    for lost in (answer for answer in answers if answer.status == 502):
        assert lost.error.startswith(f"replica {killed.address} of endpoint chat was lost")
    assert len(drained.requests) == drained_at
    mean = sum(found.values()) / len(found)
    assert all(abs(count - mean) <= 0.1 * mean for count in found.values()), found
    assert {answer.headers["x-muster-weights-version"] for answer in answers if answer.status == 200} == {"1", "2"}
    for engine in added:
        engine.close()
