"""The clients through a gateway: what a lost node costs, what it does not, and that a batch uses all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.sandbox.cluster import Cluster

from muster.sandbox import AsyncClient, Client, Result
from muster.sandbox.hash_ring import Ring


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, 3)
    yield made
    made.close()


async def all_of(client: AsyncClient, programs: list[str], at_50: Callable[[], None]) -> dict[int, Result]:
    found = {}
    async for number, result in client.batch(programs):
        found[number] = result
        if len(found) == 50:
            await asyncio.get_running_loop().run_in_executor(None, at_50)
    return found


async def test_a_lost_node_costs_what_was_in_flight_there_and_its_sessions_are_replayed(cluster: Cluster) -> None:
    url = cluster.url(0)
    owners = Ring(cluster.endpoints)
    moving = next(
        name for name in map("m{}".format, range(1000)) if owners.owner(name.encode()) == cluster.endpoints[2]
    )
    names = [*(f"s{number}" for number in range(8)), moving]
    programs = [f"import time; time.sleep(0.02); print({number})" for number in range(240)]
    with Client(url) as client:
        async with AsyncClient(url) as other:
            for number, name in enumerate(names):
                assert client.execute(f"n = {number}", session=name).new_session
                assert (await other.execute(f"n = {number}", session=f"a-{name}")).new_session
            results = await all_of(other, programs, lambda: cluster.kill(2))
            check(results, len(programs))
            assert all(cluster.executed(number) > 20 for number in (0, 1))
            cluster.tell(cluster.endpoints[:2])
            for number, name in enumerate(names):
                assert client.execute("n += 1; n", session=name).stdout == f"{number + 1}\n"
                assert (await other.execute("n += 1; n", session=f"a-{name}")).stdout == f"{number + 1}\n"
            check(dict(client.batch(programs[:40])), 40, lost=0)


def check(results: dict[int, Result], count: int, lost: int | None = None) -> None:
    """Each program has its own result, or was in flight at the lost node, and says so."""
    assert sorted(results) == list(range(count))
    failed = [result for result in results.values() if not result.completed]
    assert all(result.reason == "lost" and "was lost while this ran" in result.stderr for result in failed)
    assert all(result.stdout == f"{number}\n" for number, result in results.items() if result.completed)
    assert len(failed) <= count // 2 if lost is None else len(failed) == lost
