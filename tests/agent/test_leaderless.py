"""A run without a leader is recorded as failed, unless only this node cannot see the leader."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from tests.agent.conftest import identity

from muster.agent import leaderless
from muster.election import leader_silence
from muster.rundir import AttemptPaths, read_record, write_json

QUIET_S, POLL_S, SLOW_POLL_S = 1.0, 0.02, 0.3
HANG_S = 3 * QUIET_S
BUSY_S = 120.0


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_silence, "LEADERLESS_AFTER_S", QUIET_S)
    monkeypatch.setattr(leader_silence, "SLOW_POLL_S", SLOW_POLL_S)
    monkeypatch.setattr(leaderless, "LEADER_POLL_S", POLL_S)


def hang(attempt: AttemptPaths, published: float) -> threading.Thread:
    """Make the status hang on open for a while, as on a filesystem that does not answer."""
    os.mkfifo(attempt.status())

    def answer() -> None:
        time.sleep(HANG_S)
        writer = os.open(attempt.status(), os.O_WRONLY)  # with this the reader's own open returns
        write_json(attempt.status(), {"updated": published})
        os.write(writer, b'{"updated": 1.0}')
        os.close(writer)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


async def test_time_in_a_call_that_hangs_is_not_taken_for_silence_of_the_leader(tmp_path: Path) -> None:
    agent = identity(tmp_path, 2)
    hanging = hang(agent.attempt, published=2.0)
    await asyncio.wait_for(leaderless.end_leaderless_run(agent, "the leader is gone"), BUSY_S)
    assert not os.path.exists(agent.attempt.outcome)
    hanging.join()


async def test_an_agent_continues_while_a_call_hangs_and_records_the_end_after_answered_polls(
    tmp_path: Path,
) -> None:
    agent = identity(tmp_path, 2)
    hanging = hang(agent.attempt, published=1.0)
    began = time.monotonic()
    ending = asyncio.ensure_future(leaderless.end_leaderless_run(agent, "the leader is gone"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert hanging.is_alive() and time.monotonic() - began < HANG_S  # the loop did not wait for the answer
    await asyncio.wait_for(ending, BUSY_S)
    assert time.monotonic() - began > HANG_S + QUIET_S
    assert read_record(agent.attempt.outcome)["end_reason"] == "the leader is gone"
    hanging.join()


async def test_a_run_directory_that_cannot_be_read_is_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = identity(tmp_path, 2)
    away = tmp_path / "away"
    os.rename(agent.attempt.root, away)
    monkeypatch.setattr(leaderless, "RUN_DIRECTORY_TIMEOUT_S", 2 * QUIET_S)
    await asyncio.wait_for(leaderless.end_leaderless_run(agent, "the leader is gone"), BUSY_S)
    assert not (away / "outcome").exists()


async def test_a_leader_that_publishes_while_the_batch_host_is_asked_keeps_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = identity(tmp_path, 2)
    write_json(agent.attempt.status(), {"updated": 1.0})

    async def ask(_: object) -> None:
        write_json(agent.attempt.job_left, {"job_id": "1"})
        write_json(agent.attempt.status(), {"updated": 2.0})

    monkeypatch.setattr(leaderless, "mark_abandoned_job", ask)
    await asyncio.wait_for(leaderless.end_leaderless_run(agent, "the leader is gone"), BUSY_S)
    assert not os.path.exists(agent.attempt.outcome) and not os.path.exists(agent.attempt.job_left)
