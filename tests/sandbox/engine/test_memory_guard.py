"""The memory guard: the largest program is ended when memory runs out, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from muster.sandbox.engine import memory_guard
from muster.sandbox.engine.admission_queue import PROGRAM
from muster.sandbox.engine.engine import Engine
from muster.sandbox.models import Program, ProgramResult, ProgramStep

Engines = Callable[..., Awaitable[Engine]]
HOLD = """
import time
held = bytearray({size} << 20)
for page in range(0, len(held), 4096):
    held[page] = 1
time.sleep({seconds})
print("done")
"""


async def hold(engine: Engine, size: int, seconds: float) -> ProgramResult:
    step = ProgramStep({"do": "python", "code": HOLD.format(size=size, seconds=seconds)}, 300.0)
    return (await engine.run(Program((step,), 100, "python"), PROGRAM))[-1]


async def test_the_largest_program_is_ended_when_all_together_use_too_much(engines: Engines) -> None:
    engine = await engines(workers_max=3, memory_total_mb=400)
    small = asyncio.ensure_future(hold(engine, 50, 600))
    large = await hold(engine, 600, 600)
    assert large.reason in ("node_memory", "memory")  # of the guard, or of the kernel where it has a cgroup
    assert not small.done()
    small.cancel()
    await asyncio.gather(small, return_exceptions=True)


async def test_the_largest_program_is_ended_when_the_node_has_too_little_left(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await engines(workers_max=3)
    small = asyncio.ensure_future(hold(engine, 20, 600))
    large = asyncio.ensure_future(hold(engine, 200, 600))
    while True:
        measured = await asyncio.get_running_loop().run_in_executor(None, engine.guard._measure, engine.pool.occupied())
        if sum(one.bytes for one in measured) > 210 << 20:
            break
        await asyncio.sleep(0.05)
    monkeypatch.setattr(memory_guard, "available_bytes", lambda: 0)
    assert (await large).reason == "node_memory"
    assert engine.guard.ended == 1
    await asyncio.sleep(3 * memory_guard.GUARD_INTERVAL_S)
    assert not small.done()  # ending it would not help
    small.cancel()
    await asyncio.gather(small, return_exceptions=True)
