"""Stopping many actors in parallel, on real Ray."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.placement.conftest import DEADLINE_S, eventually

if TYPE_CHECKING:
    from tests.placement.conftest import Marked


ray = pytest.importorskip("ray")

from muster.placement.runtime import shutdown
from muster.placement.runtime.managed import ManagedSubprocess

pytestmark = pytest.mark.ray

MANY, GRACE_S = 32, 2.0


def test_a_stop_that_hangs_is_forced_and_unreachable_actors_are_named(
    group: Any, marked: Marked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = tmp_path / "forced"

    class Stuck:
        async def stop(self, grace: float) -> None:
            await asyncio.sleep(1000)

        async def force_sigkill_subprocess(self) -> None:
            forced.touch()

    stuck = ray.remote(Stuck).options(num_cpus=0).remote()
    ray.get(stuck.__ray_ready__.remote())  # on a busy machine, starting an actor takes longer than the waits below
    program = ManagedSubprocess.spawn("asked", group, 0, num_gpus=0, command=["sleep", "9"], subprocess_env=marked.env)
    monkeypatch.setattr(shutdown, "ANSWER_MARGIN_S", 0.5)
    monkeypatch.setattr(shutdown, "SIGKILL_WAIT_S", DEADLINE_S)
    actors = [("alike", stuck), ("alike", program.actor), ("no actor", object())]
    assert shutdown.graceful_stop_actors(actors, timeout_s=0.5) == ["no actor"]
    assert forced.exists() and marked.gone()


@pytest.mark.slow
def test_thirty_two_that_ignore_term_take_one_grace_and_one_that_is_dead_already_does_not_matter(
    group: Any, marked: Marked
) -> None:
    deaf = ["sh", "-c", "trap '' TERM; while :; do sleep 1000; done"]

    def begin(number: int) -> ManagedSubprocess:
        return ManagedSubprocess.spawn(f"deaf{number}", group, 0, num_gpus=0, command=deaf, subprocess_env=marked.env)

    with ThreadPoolExecutor(MANY) as pool:
        processes = list(pool.map(begin, range(MANY)))
    eventually("all to be deaf", lambda: len(marked.alive()) == 2 * MANY)
    ray.kill(processes[1].actor)
    start = time.monotonic()
    ManagedSubprocess.stop_many(processes, timeout_s=GRACE_S)
    took = time.monotonic() - start
    print(f"{MANY} stopped in {took:.1f} s with a grace of {GRACE_S:g} s")
    assert took < MANY * GRACE_S / 4  # far from one after the other, however slow the machine
    eventually("all to be gone", marked.gone)
