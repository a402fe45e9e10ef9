"""Admission control: slots, a bounded queue, deadlines, classes."""

from __future__ import annotations

import asyncio

import pytest

from muster.sandbox.engine import admission_queue
from muster.sandbox.engine.admission_queue import (
    BATCH,
    MAX_SESSIONS_IN_A_ROW,
    PROGRAM,
    SESSION,
    Admission,
    ClientOverloaded,
    Overloaded,
)


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

    async def come(self, name: str, kind: int, client: str = "", timeout: float = 60.0) -> None:
        self.leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, kind, client, timeout))
        await settle()

    async def _hold(self, name: str, kind: int, client: str, timeout: float) -> None:
        async with self.admission.slot(kind, client, timeout):
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


async def test_clients_are_served_in_turn_whoever_asks_more() -> None:
    crowd = Crowd(Admission(1, 100, 60))
    await crowd.come("first", PROGRAM)
    for number in range(4):
        await crowd.come(f"a{number}", PROGRAM, "a")
    for number in range(2):
        await crowd.come(f"b{number}", PROGRAM, "b")
    for _ in range(7):
        await crowd.go(crowd.served[-1])
    assert crowd.served == ["first", "a0", "b0", "a1", "b1", "a2", "a3"]
    assert (crowd.admission.running, crowd.admission.queued) == (0, 0)


async def test_a_full_queue_is_shared_by_its_clients() -> None:
    crowd = Crowd(Admission(1, 4, 60))
    await crowd.come("running", PROGRAM, "a")
    for number in range(4):
        await crowd.come(f"a{number}", PROGRAM, "a")
    await crowd.come("a4", PROGRAM, "a")
    with pytest.raises(Overloaded) as alone:
        await crowd.tasks["a4"]
    assert not isinstance(alone.value, ClientOverloaded)  # no other client waits: the server is full
    await crowd.come("b0", PROGRAM, "b")
    with pytest.raises(ClientOverloaded):
        await crowd.tasks["a3"]  # the newest of the client that has most
    await crowd.come("a5", PROGRAM, "a")
    with pytest.raises(ClientOverloaded) as refused:
        await crowd.tasks["a5"]
    assert refused.value.status == 429 and Overloaded.status == 503
    await crowd.come("b1", PROGRAM, "b")
    with pytest.raises(ClientOverloaded):
        await crowd.tasks["a2"]
    crowd.admission.close()
    await crowd.go("running")
    await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)


async def until(what: str, crowd: Crowd, name: str) -> None:
    for _ in range(60_000):
        if name in crowd.served:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"waited for {what}")


async def test_short_programs_run_beside_long_ones_that_hold_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_queue, "EXPRESS_WAIT_S", 0.05)
    crowd = Crowd(Admission(4, 100, 60))
    for number in range(4):
        await crowd.come(f"long{number}", PROGRAM, timeout=3600)
    await crowd.come("long", PROGRAM, timeout=3600)
    for number in range(3):
        await crowd.come(f"short{number}", PROGRAM, timeout=5)
    for number in range(3):
        await until("its express slot", crowd, f"short{number}")
        assert crowd.admission.express == 1 and crowd.admission.running == 4
        await crowd.go(f"short{number}")
    assert crowd.served[4:] == ["short0", "short1", "short2"] and crowd.admission.queued == 1
    await crowd.go("long0")
    assert crowd.served[-1] == "long" and crowd.admission.express == 0
    for name in ("long1", "long2", "long3", "long"):
        await crowd.go(name)
    assert crowd.admission.running == 0


async def test_a_cancelled_wait_for_an_express_slot_takes_none_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_queue, "EXPRESS_WAIT_S", 0.0)
    admission = Admission(4, 100, 60)
    crowd = Crowd(admission)
    for number in range(4):
        await crowd.come(f"long{number}", PROGRAM, timeout=3600)
    waiting = asyncio.create_task(crowd._hold("short", PROGRAM, "", 1.0))
    while admission.queued == 0:
        await asyncio.sleep(0)
    admission._released = float("-inf")
    admission._fill_express_slots()
    assert admission.express == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert admission.express == 0
    for number in range(4):
        await crowd.go(f"long{number}")


async def test_a_refused_client_learns_when_to_come_again() -> None:
    admission = Admission(2, 100, 60)
    assert admission.retry_after_s == 1
    admission._average_s = 10.0
    assert admission.retry_after_s == 5
    admission._average_s = 10_000.0
    assert admission.retry_after_s == admission_queue.RETRY_AFTER_MAX_S
