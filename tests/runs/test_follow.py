"""Following a run: events and output in order as they appear, the result last."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.rundir import AttemptPaths, write_json
from muster.runs import follow as following
from muster.runs import monitor
from muster.runs.follow import Output, RunEvent, RunResult, follow
from muster.runs.monitor import RunMonitor

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FOLLOW_POLL_S", 0.01)


class Follower:
    """Reads item by item; `next` waits for the next one."""

    def __init__(self, run: FakeRun) -> None:
        self._items = follow(run)

    async def next(self) -> Any:
        return await asyncio.wait_for(anext(self._items), DEADLINE_S)

    async def event(self) -> str:
        item = await self.next()
        assert isinstance(item, RunEvent)
        return item.fields["event"]

    async def output(self, size: int) -> bytes:
        """Read exactly this many bytes of output; they may come in pieces."""
        data = b""
        while len(data) < size:
            item = await self.next()
            assert isinstance(item, Output)
            data += item.data
        return data

    async def close(self) -> None:
        await self._items.aclose()


@pytest.fixture
async def follower(run: FakeRun) -> AsyncIterator[Follower]:
    reader = Follower(run)
    yield reader
    await reader.close()


async def all_of(run: FakeRun) -> list[Any]:
    async def collect() -> list[Any]:
        async with aclosing(follow(run)) as items:
            return [item async for item in items]

    return await asyncio.wait_for(collect(), DEADLINE_S)


async def test_the_items_of_a_finished_run_are_output_events_and_the_result_at_last(run: FakeRun) -> None:
    run.submitted(job_id="4711").begins().tells("run", state="running").says("hello\n").tells("end")
    run.publishes("failed", end_reason="the driver exited with 7").ends(7, "the driver exited with 7")
    *items, last = await all_of(run)
    assert items == [Output(b"hello\n"), RunEvent({"event": "run", "state": "running"}), RunEvent({"event": "end"})]
    assert last == RunResult(run.run_id, run.root, "4711", "failed", 7, "the driver exited with 7", None)


async def test_a_run_is_followed_from_before_it_begins(
    run: FakeRun, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled = threading.Semaphore(0)
    monkeypatch.setattr(RunMonitor, "poll_dead", lambda monitor, attempt: polled.release())
    waiting = asyncio.create_task(follower.next())
    for _ in range(3):
        assert await asyncio.to_thread(polled.acquire, timeout=DEADLINE_S)
    assert not waiting.done()
    run.begins().tells("run", state="gathering")
    assert await waiting == RunEvent({"event": "run", "state": "gathering"})


async def test_events_are_yielded_as_they_happen(run: FakeRun, follower: Follower) -> None:
    run.begins().tells("driver_start")
    assert await follower.event() == "driver_start"
    run.says("one\n")
    assert await follower.output(4) == b"one\n"
    run.says("two, without a line's end")
    assert await follower.output(25) == b"two, without a line's end"
    run.tells("driver_end")
    assert await follower.event() == "driver_end"
    run.publishes("succeeded", end_reason="the driver exited with 0").ends(0, "the driver exited with 0")
    result = await follower.next()
    assert (result.state, result.exit_code) == ("succeeded", 0)
    with pytest.raises(StopAsyncIteration):
        await follower.next()


async def test_all_output_comes_before_the_event_that_tells_of_the_driver_s_end(run: FakeRun) -> None:
    """However much there is of it: more than one reading takes."""
    text = "x" * 3_000_000
    run.begins().says(text).tells("driver_end").publishes("succeeded").ends(0, "the driver exited with 0")
    *output, event, result = await all_of(run)
    assert b"".join(item.data for item in output).decode() == text
    assert event == RunEvent({"event": "driver_end"})
    assert isinstance(result, RunResult)


async def test_a_half_written_event_is_yielded_when_it_is_complete(run: FakeRun, follower: Follower) -> None:
    path = Path(run.begins().attempt(0).events())
    path.write_text('{"event": "run"}\n{"event": "no')
    assert await follower.event() == "run"
    with path.open("a") as file:
        file.write('de"}\n')
    assert await follower.event() == "node"


@pytest.mark.parametrize(
    "line",
    [
        b'{"time": 1760000000.0, "event": "no{"event": "node"}',
        b'{"event": "no',
        b"[1, 2]",
        b'"event"',
        b"7",
        b"null",
        b'{"event": 7}',
        b'{"time": 1760000000.0}',
        b"\xff\xfe\0",
        b"[" * 100_000,
    ],
)
async def test_a_broken_line_of_the_events_is_skipped_and_reported_once(run: FakeRun, line: bytes) -> None:
    """A full disk cuts a line short, and what follows may have been appended to it."""
    run.begins().tells("run", state="running")
    with open(run.attempt(0).events(), "ab") as file:
        file.write(line + b"\n\n" + line + b"\n")
    run.tells("driver_end", exit_code=7).publishes("failed").ends(7, "the driver exited with 7")
    *items, last = await all_of(run)
    assert [item.fields["event"] for item in items] == ["run", "events_lost", "driver_end"]
    assert items[1].fields["file"] == run.attempt(0).events()
    assert last.exit_code == 7


async def test_an_incomplete_last_event_is_reported_at_the_end(run: FakeRun) -> None:
    run.begins().tells("run", state="running")
    with open(run.attempt(0).events(), "a") as file:
        file.write('{"event": "driver_e')
    run.publishes("succeeded").ends(0, "the driver exited with 0")
    *items, last = await all_of(run)
    assert [item.fields["event"] for item in items] == ["run", "events_lost"]
    assert last.exit_code == 0


async def test_no_event_of_a_large_run_is_missed_at_its_end(run: FakeRun) -> None:
    run.begins()
    line = '{"event": "node", "host": "' + "x" * 1000 + '"}\n'
    Path(run.attempt(0).events()).write_text(line * 2000 + '{"event": "end"}\n')
    run.publishes("succeeded").ends(0, "the driver exited with 0")
    items = await all_of(run)
    assert RunEvent({"event": "end"}) in items


# -- attempts ---------------------------------------------------------------------------------------------------


async def test_a_second_attempt_is_followed_from_its_own_beginning(run: FakeRun, follower: Follower) -> None:
    run.begins(0).tells("run", attempt=0).says("first\n")
    assert await follower.output(6) == b"first\n"
    assert await follower.event() == "run"
    run.begins(1).says("2nd\n", attempt=1).tells("driver_start", attempt=1)
    assert await follower.output(4) == b"2nd\n"
    assert await follower.event() == "driver_start"
    run.publishes("succeeded", attempt=1).ends(0, "the driver exited with 0", attempt=1)
    assert (await follower.next()).state == "succeeded"


async def test_an_older_attempt_s_outcome_is_not_the_run_s(run: FakeRun, follower: Follower) -> None:
    run.begins(0).ends(125, "node lost", attempt=0).begins(1).tells("run", attempt=1)
    assert await follower.event() == "run"
    run.publishes("succeeded", attempt=1).ends(0, "the driver exited with 0", attempt=1)
    assert (await follower.next()).exit_code == 0


async def test_the_last_output_of_an_attempt_is_yielded_after_the_next_has_begun(
    run: FakeRun, follower: Follower
) -> None:
    run.begins(0).says("first\n").tells("run")
    assert await follower.output(6) == b"first\n"
    assert await follower.event() == "run"
    run.says("last words\n").begins(1).says("second\n", attempt=1).ends(0, "the driver exited with 0", attempt=1)
    assert await follower.output(18) == b"last words\nsecond\n"


# -- runs that end without saying so ----------------------------------------------------------------------------


async def test_a_run_whose_job_script_was_killed_ends_as_failed(run: FakeRun) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    run.submitted(pid=ended.pid, host=os.uname().nodename, backend="local", kind="local").begins().publishes("running")
    result = (await all_of(run))[-1]
    assert (result.state, result.exit_code) == ("failed", 125)
    assert "job script was killed" in result.end_reason


async def test_output_written_during_the_query_to_slurm_is_yielded_before_the_result(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poll_dead(watch: RunMonitor, attempt: AttemptPaths | None) -> str:
        run.says("last words\n")
        return "its job was killed"

    monkeypatch.setattr(RunMonitor, "poll_dead", poll_dead)
    *output, result = await all_of(run.submitted().begins().publishes("running"))
    assert b"".join(item.data for item in output) == b"last words\n"
    assert result.end_reason == "its job was killed"


async def test_a_job_script_on_another_host_is_not_searched_here(run: FakeRun, follower: Follower) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    run.submitted(pid=ended.pid, host="another-host").begins().tells("run")
    assert await follower.event() == "run"
    run.tells("node")
    assert await follower.event() == "node"


async def test_an_outcome_goes_before_the_end_of_the_job_script(run: FakeRun) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    run.submitted(pid=ended.pid, host=os.uname().nodename).begins().publishes("succeeded").ends(
        0, "the driver exited with 0"
    )
    assert (await all_of(run))[-1].state == "succeeded"


@pytest.mark.parametrize(
    ("state", "said"), [("CANCELLED", "Slurm job 4711 is CANCELLED"), (None, "Slurm job 4711 is unknown to Slurm")]
)
async def test_a_silent_run_whose_job_slurm_knows_as_ended_ends_as_failed(
    run: FakeRun, state: str | None, said: str, monkeypatch: pytest.MonkeyPatch, fake_slurm: FakeSlurm
) -> None:
    monkeypatch.setattr(monitor, "SLURM_POLL_S", 0.0)
    if state is not None:
        fake_slurm.knows("4711", state, run.script)
    result = (await all_of(run.submitted(job_id="4711")))[-1]
    assert (result.state, result.exit_code, result.end_reason) == ("failed", 125, said)


async def test_while_a_run_speaks_slurm_is_not_asked(run: FakeRun, follower: Follower, fake_slurm: FakeSlurm) -> None:
    run.submitted(job_id="4711").begins()
    for number in range(20):
        run.publishes("running", updated=number).tells("node")
        assert await follower.event() == "node"
    assert fake_slurm.calls == []


async def test_output_that_a_cache_still_hides_at_the_end_is_awaited(run: FakeRun) -> None:
    """The outcome says how much was written; a client of a network filesystem may know a smaller size."""
    run.submitted(backend="local", kind="local").begins().publishes("succeeded", end_reason="done").says("first")
    outcome = {"exit_code": 0, "end_reason": "done", "driver_bytes": 10, "events_bytes": 0}
    write_json(run.attempt(0).outcome, outcome)
    items, output = follow(run), b""
    item = await asyncio.wait_for(anext(items), DEADLINE_S)
    assert isinstance(item, Output)
    output += item.data
    run.says("later")
    while not isinstance(item := await asyncio.wait_for(anext(items), DEADLINE_S), RunResult):
        output += item.data if isinstance(item, Output) else b""
    assert output == b"firstlater" and item.exit_code == 0


async def test_an_outcome_that_cannot_be_read_for_a_while_is_no_failure(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.submitted(backend="local", kind="local").begins().publishes("succeeded", end_reason="done")
    os.mkdir(run.attempt(0).outcome)  # listed, but it cannot be opened

    async def recover() -> None:
        while not opened:
            await asyncio.sleep(0.01)
        os.rmdir(run.attempt(0).outcome)
        run.ends(0, "done")

    opened: list[str] = []
    wait = following._wait_until_readable

    async def wait_and_note(path: str) -> None:
        opened.append(path)
        await wait(path)

    monkeypatch.setattr(following, "_wait_until_readable", wait_and_note)
    recovery = asyncio.create_task(recover())
    items = await all_of(run)
    await recovery
    assert items[-1].exit_code == 0
