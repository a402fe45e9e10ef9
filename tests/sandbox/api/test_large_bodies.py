"""Large bodies are converted in threads, small ones at once."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

from muster.sandbox.api.large_bodies import LARGE_BODIES_MAX, LargeBodies
from muster.sandbox.http import large_json


async def test_a_small_body_is_left_to_the_codec_and_a_large_one_becomes_bytes() -> None:
    small, large = {"stdout": "x"}, {"stdout": "x" * (large_json.LARGE + 1)}
    assert await LargeBodies().encoded(small) is small
    encoded = await LargeBodies().encoded(large)
    assert isinstance(encoded, bytes) and json.loads(encoded) == large


async def test_only_so_many_bodies_are_converted_at_the_same_time() -> None:
    bodies, lock, release = LargeBodies(), threading.Lock(), threading.Event()
    running: list[int] = [0, 0]  # now, at most

    def convert() -> None:
        with lock:
            running[0] += 1
            running[1] = max(running)
            if running[0] == LARGE_BODIES_MAX:
                release.set()
        assert release.wait(120)
        with lock:
            running[0] -= 1

    work: list[Any] = [bodies.in_thread(convert) for _ in range(LARGE_BODIES_MAX + 3)]
    await asyncio.gather(*work)
    assert running == [0, LARGE_BODIES_MAX]
