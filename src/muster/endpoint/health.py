"""Health checks of replicas: one task for each replica, and the meaning of health responses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from muster.endpoint.exchange import connect_replica, read_body
from muster.endpoint.pool import READY, HealthResult, PoolReplica
from muster.sandbox.http import client, codec

CHECK_TIMEOUT_S = 5.0
RETRY_INTERVAL_S = 0.5  # between checks of a replica that is not ready
BODY_MAX_BYTES = 1 << 20
DRAINING_STATUS = "draining"  # value of `status` in a health response


def parse_health(status: int, body: bytes) -> HealthResult:
    """Return what a health response says: status below 400, and optional fields of a JSON object.

    `status`: "draining"; `model`, `models`, or the list of OpenAI's /v1/models; `weights_version`.

    >>> parse_health(200, b'{"model": "policy", "weights_version": 7}')
    HealthResult(ok=True, reason='', is_draining=False, models=frozenset({'policy'}), weights_version='7')
    """
    record: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(body)
    facts = record if isinstance(record, dict) else {}
    is_draining = facts.get("status") == DRAINING_STATUS
    version = facts.get("weights_version")
    return HealthResult(
        ok=status < 400,
        reason="" if status < 400 else f"its health check has the status {status}",
        is_draining=is_draining,
        models=frozenset(_models(facts)),
        weights_version=str(version) if isinstance(version, (str, int)) else None,
    )


def _models(facts: dict[str, Any]) -> Iterable[str]:
    listed = facts.get("models") if isinstance(facts.get("models"), list) else facts.get("data")
    entries = [facts.get("model"), *(listed if isinstance(listed, list) else [])]
    names = [entry.get("id") if isinstance(entry, dict) else entry for entry in entries]
    return [name for name in names if isinstance(name, str)]


async def check_replica(url: str, path: str | None, token: str) -> HealthResult:
    """Check a replica once."""
    try:
        return await asyncio.wait_for(_check(url, path, token), CHECK_TIMEOUT_S)
    except asyncio.TimeoutError:
        return HealthResult(False, f"its health check got no response within {CHECK_TIMEOUT_S:g} s")
    except (OSError, EOFError, ValueError) as error:
        return HealthResult(False, f"its health check failed: {error}")


async def _check(url: str, path: str | None, token: str) -> HealthResult:
    reader, writer = await connect_replica(url)
    try:
        if path is None:
            return HealthResult(True)
        headers = {"host": urlsplit(url).netloc, "authorization": f"Bearer {token}", "connection": "close"}
        writer.write(codec.request_bytes("GET", path, headers, b""))
        head = await client.read_head(reader)
        body = bytearray()
        async for data in read_body(reader, head):
            body += data
            if len(body) > BODY_MAX_BYTES:
                break
        return parse_health(head.status, bytes(body))
    finally:
        writer.close()


class HealthChecks:
    """Checks the members of a pool regularly, and at once after a failed request."""

    def __init__(self, path: str | None, token: str, interval_s: float, changed: Callable[[], None]) -> None:
        """`changed` is called after each check."""
        self._path, self._token, self._interval_s, self._changed = path, token, interval_s, changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, asyncio.Event] = {}

    def watch(self, replica: PoolReplica) -> asyncio.Event:
        """Begin to check a new member; return the event of its first check."""
        first = asyncio.Event()
        self.forget([replica.url])
        self._due[replica.url] = asyncio.Event()
        self._tasks[replica.url] = asyncio.create_task(self._check_forever(replica, first))
        return first

    def check_soon(self, replica: PoolReplica) -> None:
        """Check a replica now instead of at the end of the interval."""
        due = self._due.get(replica.url)
        if due is not None:
            due.set()

    async def _check_forever(self, replica: PoolReplica, first: asyncio.Event) -> None:
        due = self._due[replica.url]
        while self._due.get(replica.url) is due:
            due.clear()
            replica.apply_check(await check_replica(replica.url, self._path, self._token))
            first.set()
            self._changed()
            interval = self._interval_s if replica.state == READY else min(RETRY_INTERVAL_S, self._interval_s)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(due.wait(), interval)

    def forget(self, urls: Iterable[str]) -> None:
        """Stop the checks of replicas that are not members any more."""
        for url in urls:
            task = self._tasks.pop(url, None)
            if task is not None:
                self._due.pop(url).set()  # before Python 3.12, wait_for can lose a cancellation
                task.cancel()

    @property
    def urls(self) -> list[str]:
        return list(self._tasks)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self.forget(self.urls)
        await asyncio.gather(*tasks, return_exceptions=True)
