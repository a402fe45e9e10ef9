"""The reports of the process that starts Ray."""

from __future__ import annotations

import asyncio
import json
import os
from types import SimpleNamespace
from typing import Any

from muster.agent.ray.node import NodesAlive, StartAttempt


async def test_a_node_table_of_20_000_nodes_is_read() -> None:
    """Such a line is longer than asyncio's default limit of 64 KiB, and than a pipe holds."""
    held: Any = SimpleNamespace(block=None)
    attempt = StartAttempt("/nonexistent", b"", {}, held)
    attempt.started, attempt._nodes = True, 20_000
    reading, writing = os.pipe()
    reports = asyncio.ensure_future(attempt._read_reports(reading))
    ranks = list(range(20_000))
    line = json.dumps({"event": "alive", "ranks": ranks}).encode() + b"\n"
    assert len(line) > 2**16
    with os.fdopen(writing, "wb") as pipe:
        await asyncio.to_thread(pipe.write, line)
        await asyncio.to_thread(pipe.flush)
    await asyncio.wait_for(reports, 120)
    assert attempt.events.get_nowait() == NodesAlive(tuple(ranks)) and attempt.events.empty()
