"""The leader's inbox: order of events, and the failures of tasks."""

from __future__ import annotations

import asyncio

import pytest

from muster.agent.leader import inbox as module
from muster.agent.leader.inbox import Inbox, SignalPassedOn, TimePassed, WorkFailed

DEADLINE_S = 120.0


async def take(inbox: Inbox, count: int) -> list[module.LeaderEvent]:
    return [await asyncio.wait_for(inbox.next(), DEADLINE_S) for _ in range(count)]


async def test_events_come_in_the_order_in_which_they_were_posted() -> None:
    inbox = Inbox()
    for number in range(3):
        inbox.post(SignalPassedOn(number))
    assert await take(inbox, 3) == [SignalPassedOn(number) for number in range(3)]


async def test_a_reader_waits_for_the_next_event() -> None:
    inbox = Inbox()
    reading = asyncio.ensure_future(take(inbox, 2))
    for number in range(2):
        await asyncio.sleep(0)
        inbox.post(SignalPassedOn(number))
    assert await reading == [SignalPassedOn(0), SignalPassedOn(1)]


async def test_other_tasks_run_while_many_events_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    inbox, turns = Inbox(), 0
    for number in range(10):
        inbox.post(SignalPassedOn(number))

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    assert [await inbox.next() for _ in range(10)] == [SignalPassedOn(number) for number in range(10)]
    running.cancel()
    assert turns >= 9


async def test_events_that_were_put_back_come_first_and_in_order() -> None:
    inbox = Inbox()
    inbox.post(SignalPassedOn(3))
    inbox.put_back([SignalPassedOn(1), SignalPassedOn(2)])
    assert await take(inbox, 3) == [SignalPassedOn(1), SignalPassedOn(2), SignalPassedOn(3)]


async def test_the_exception_of_a_task_is_an_event() -> None:
    inbox, error = Inbox(), ValueError("a defect")

    async def fail() -> None:
        raise error

    inbox.spawn(fail())
    assert await take(inbox, 1) == [WorkFailed(error)]


async def test_a_task_that_ends_or_is_cancelled_is_no_event() -> None:
    inbox = Inbox()
    await inbox.spawn(asyncio.sleep(0))
    endless = inbox.spawn(asyncio.sleep(1000))
    inbox.cancel_tasks()
    await asyncio.wait([endless])
    await asyncio.sleep(0)
    inbox.post(TimePassed())
    assert await take(inbox, 1) == [TimePassed()]


async def test_the_clock_posts_until_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOCK_INTERVAL_S", 0.001)
    inbox = Inbox()
    inbox.start_clock()
    assert await take(inbox, 3) == [TimePassed()] * 3
    inbox.cancel_tasks()
