"""Admission control: slots, a bounded queue, deadlines, classes."""

from __future__ import annotations

import asyncio

import pytest

from muster.sandbox.engine.admission_queue import BATCH, MAX_SESSIONS_IN_A_ROW, PROGRAM, SESSION, Admission, Overloaded


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Crowd:
    """Holders of slots, in the order in which they were served."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.served: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.leave: dict[str, asyncio.Event] = {}

    async def come(self, name: str, kind: int) -> None:
        self.leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, kind))
        await settle()

    async def _hold(self, name: str, kind: int) -> None:
        async with self.admission.slot(kind):
            self.served.append(name)
            await self.leave[name].wait()

    async def go(self, name: str) -> None:
        self.leave[name].set()
        await settle()


async def test_sessions_go_first_but_not_for_ever() -> None:
    crowd = Crowd(Admission(1, 100, 60))
    await crowd.come("first", PROGRAM)
    await crowd.come("batch", BATCH)
    await crowd.come("program", PROGRAM)
    for number in range(MAX_SESSIONS_IN_A_ROW + 2):
        await crowd.come(f"s{number}", SESSION)
    for _ in range(MAX_SESSIONS_IN_A_ROW + 5):
        await crowd.go(crowd.served[-1])
    sessions = [f"s{number}" for number in range(MAX_SESSIONS_IN_A_ROW + 2)]
    expected = ["first", *sessions[:MAX_SESSIONS_IN_A_ROW], "program", *sessions[MAX_SESSIONS_IN_A_ROW:], "batch"]
    assert crowd.served == expected
    assert crowd.admission.running == 0


async def test_a_full_queue_refuses_at_once_and_batches_do_not_fill_it() -> None:
    crowd = Crowd(Admission(1, 1, 60))
    await crowd.come("running", PROGRAM)
    for number in range(5):
        await crowd.come(f"batch{number}", BATCH)
    await crowd.come("waiting", PROGRAM)
    await crowd.come("refused", PROGRAM)
    with pytest.raises(Overloaded, match="1 requests wait already"):
        await crowd.tasks["refused"]
    assert crowd.admission.refused == 1
    crowd.admission.close()
    await crowd.go("running")
    await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)


async def test_a_wait_has_its_end_and_the_slot_goes_to_the_next() -> None:
    crowd = Crowd(Admission(1, 10, 0.05))
    await crowd.come("running", PROGRAM)
    await crowd.come("late", PROGRAM)
    with pytest.raises(Overloaded, match=r"busy for 0\.05 s"):
        await crowd.tasks["late"]
    await crowd.come("next", BATCH)
    await crowd.go("running")
    assert crowd.served == ["running", "next"]
    await crowd.go("next")
    assert (crowd.admission.running, crowd.admission.queued) == (0, 0)


async def test_a_cancelled_wait_takes_no_slot_along() -> None:
    crowd = Crowd(Admission(1, 10, 60))
    await crowd.come("running", PROGRAM)
    await crowd.come("leaves", PROGRAM)
    await crowd.come("stays", PROGRAM)
    crowd.tasks["leaves"].cancel()
    crowd.leave["running"].set()  # in the same moment
    await settle()
    assert crowd.served == ["running", "stays"]
    await crowd.go("stays")
    assert crowd.admission.running == 0


async def test_a_slot_for_a_waiter_that_is_cancelled_at_the_same_time_goes_to_the_next() -> None:
    crowd = Crowd(Admission(1, 10, 60))
    await crowd.come("running", PROGRAM)
    await crowd.come("leaves", PROGRAM)
    await crowd.come("stays", PROGRAM)
    crowd.leave["running"].set()
    await asyncio.sleep(0)  # `leaves` has been given the slot, and has not woken up
    crowd.tasks["leaves"].cancel()
    await settle()
    assert crowd.served[-1] == "stays"
    await crowd.go("stays")
    assert crowd.admission.running == 0


async def test_closing_refuses_waiting_and_new_requests() -> None:
    crowd = Crowd(Admission(1, 10, 60))
    await crowd.come("running", PROGRAM)
    await crowd.come("waiting", BATCH)
    crowd.admission.close()
    with pytest.raises(Overloaded, match="stopping"):
        await crowd.tasks["waiting"]
    await crowd.come("late", PROGRAM)
    with pytest.raises(Overloaded, match="stopping"):
        await crowd.tasks["late"]
    await crowd.go("running")
