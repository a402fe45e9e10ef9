"""A process as its owner sees it: its start, its end, the signals it gets, and who ended it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from muster.process.exit import ANOTHER, ITSELF, OWNER, Exit
from muster.process.managed import ManagedProcess, exit_of

PID = 4242


@pytest.fixture
async def process() -> ManagedProcess:
    loop = asyncio.get_running_loop()
    return ManagedProcess(loop.create_future(), loop.create_future())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The groups that were signalled, instead of real ones."""
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda group, signum: signals.append((group, signum)))
    return signals


def report(status: int = 0, signalled: bool = False, oom_kills: int = 0) -> dict[str, Any]:
    return {"status": status, "signalled": signalled, "oom_kills": oom_kills}


async def test_a_process_runs_from_its_start_to_its_reported_end(process: ManagedProcess) -> None:
    assert not process.runs
    process.started.set_result(PID)
    assert process.runs and process.pid == PID and process.exit is None
    process.on_exited(report(3 << 8))
    assert not process.runs and await process.wait() == process.exit == Exit(code=3)


async def test_to_give_up_waiting_leaves_the_end_to_others(process: ManagedProcess) -> None:
    process.started.set_result(PID)
    waiting = [asyncio.ensure_future(process.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    process.on_exited(report())
    assert await waiting[1] == Exit(code=0)


async def test_a_start_that_fails_has_no_end(process: ManagedProcess) -> None:
    process.refuse(OSError("no such program"))
    with pytest.raises(OSError, match="no such program"):
        await process.started
    assert not process.runs
    with pytest.raises(asyncio.CancelledError):
        await process.wait()


async def test_a_process_that_has_started_cannot_be_refused(process: ManagedProcess) -> None:
    process.started.set_result(PID)
    process.refuse(OSError("too late"))
    assert process.runs and process.pid == PID


async def test_a_signal_goes_to_the_group_until_the_process_ends(
    process: ManagedProcess, sent: list[tuple[int, int]]
) -> None:
    process.started.set_result(PID)
    process.signal(signal.SIGUSR1)
    process.on_exited(report())
    process.signal(signal.SIGKILL)
    assert sent == [(PID, signal.SIGUSR1)]


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
async def test_a_group_that_is_gone_or_foreign_is_no_error(
    process: ManagedProcess, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    def fail(group: int, signum: int) -> None:
        raise error

    process.started.set_result(PID)
    monkeypatch.setattr(os, "killpg", fail)
    process.signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("signum", "signalled", "status", "by"),
    [
        (signal.SIGTERM, False, signal.SIGTERM, OWNER),
        (signal.SIGTERM, False, 0, OWNER),  # it handled the request and exited
        (None, True, signal.SIGKILL, OWNER),
        (None, False, signal.SIGKILL, ANOTHER),
        (None, False, signal.SIGSEGV, ITSELF),
        (signal.SIGUSR1, False, 0, ITSELF),  # not a request to exit
    ],
)
async def test_an_end_is_the_owner_s_if_the_owner_or_its_supervisor_asked_for_it(
    process: ManagedProcess,
    sent: list[tuple[int, int]],
    signum: int | None,
    signalled: bool,
    status: int,
    by: str,
) -> None:
    process.started.set_result(PID)
    if signum is not None:
        process.signal(signum)
    process.on_exited(report(status, signalled))
    assert process.exit is not None and process.exit.ended_by == by


async def test_a_process_that_could_not_be_ended_has_an_end_that_says_so(process: ManagedProcess) -> None:
    process.started.set_result(PID)
    process.on_left(killed=True)
    assert process.exit == Exit(signal=signal.SIGKILL)
    assert process.exit is not None and process.exit.unended and process.exit.ended_by == OWNER


async def test_a_process_of_another_user_is_left_with_an_unknown_end(process: ManagedProcess) -> None:
    process.started.set_result(PID)
    process.on_left(killed=False)
    assert process.exit == Exit() and process.exit is not None and process.exit.unended


async def test_the_end_of_a_process_with_a_lost_supervisor_is_unknown(process: ManagedProcess) -> None:
    process.started.set_result(PID)
    process.on_lost()
    assert process.exit == Exit() and process.exit is not None and not process.exit.unended


async def test_a_known_end_stays_when_the_scope_is_lost_or_leaves_processes(process: ManagedProcess) -> None:
    process.started.set_result(PID)
    process.on_exited(report(1 << 8))
    process.on_left(killed=True)
    process.on_lost()
    assert process.exit == Exit(code=1)


def test_the_end_of_an_orphan_is_converted_without_signals_of_the_owner() -> None:
    end = exit_of(report(signal.SIGKILL, oom_kills=2))
    assert (end, end.ended_by, end.out_of_memory) == (Exit(signal=signal.SIGKILL), ANOTHER, True)
