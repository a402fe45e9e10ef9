"""Guest sessions: requests by files, their outcomes, and their end with the cluster."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.agent.leader.leader_doubles import LeaderParts, wait_until

from muster.agent.leader import guests as module
from muster.agent.leader.guests import Guests
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.rundir import read_record, write_json

DEADLINE_S = 120.0


async def environment(more: dict[str, str]) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **more}


class Hosted:
    """The guests of a running cluster."""

    def __init__(self, tmp_path: Path, published: list[dict[str, Any]] | None = None) -> None:
        self.parts, self.directory = LeaderParts(tmp_path), tmp_path
        self.parts.publisher.guests = published or []
        self.attempt = self.parts.attempt
        for directory in (self.attempt.guests_dir, os.path.dirname(self.attempt.guest_log("g"))):
            os.makedirs(directory, exist_ok=True)
        Path(self.parts.identity.run.token).write_text("secret")
        self.guests = Guests(self.parts.context)

    def serve(self) -> asyncio.Future[Any]:
        return self.parts.inbox.spawn(self.guests.serve(environment, 30.0))

    def request(self, name: str, command: str) -> None:
        record = {"command": ["sh", "-c", command], "env": {"NAME": name}, "workdir": str(self.directory)}
        write_json(self.attempt.guest_request(name), record)

    async def outcome(self, name: str) -> dict[str, Any]:
        await wait_until(lambda: os.path.exists(self.attempt.guest_outcome(name)))
        return read_record(self.attempt.guest_outcome(name))


@pytest.fixture(autouse=True)
def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GUEST_POLL_S", 0.01)


@pytest.fixture
async def hosted(tmp_path: Path) -> Hosted:
    return Hosted(tmp_path)


async def test_a_requested_guest_runs_once_and_its_outcome_is_written(hosted: Hosted) -> None:
    serving = hosted.serve()
    hosted.request("a", "echo $NAME; exit 4")
    assert await hosted.outcome("a") == {"exit_code": 4, "end_reason": "the guest exited with 4"}
    hosted.request("b", "exit 0")
    assert (await hosted.outcome("b"))["exit_code"] == 0
    assert Path(hosted.attempt.guest_log("a")).read_text() == "a\n"
    assert hosted.parts.publisher.guests == [
        {"id": "a", "state": "ended", "exit_code": 4},
        {"id": "b", "state": "ended", "exit_code": 0},
    ]
    await asyncio.wait_for(hosted.guests.close(0.0), DEADLINE_S)
    await asyncio.wait_for(serving, DEADLINE_S)


async def test_a_guest_is_ended_on_request_or_with_the_cluster(hosted: Hosted) -> None:
    serving = hosted.serve()
    for name in ("stopped", "closed"):
        hosted.request(name, f"touch {name}; while :; do sleep 0.05; done")
    await wait_until(lambda: all((hosted.directory / name).exists() for name in ("stopped", "closed")))
    Path(hosted.attempt.guests_dir, "stopped.stop").touch()
    assert (await hosted.outcome("stopped"))["exit_code"] == 143
    await asyncio.wait_for(hosted.guests.close(30.0), DEADLINE_S)
    assert (await hosted.outcome("closed"))["exit_code"] == 143
    await asyncio.wait_for(serving, DEADLINE_S)


async def test_a_signal_reaches_every_guest(hosted: Hosted) -> None:
    hosted.serve()
    hosted.request("a", "trap 'exit 7' USR1; touch a; while :; do sleep 0.05; done")
    await wait_until((hosted.directory / "a").exists)
    hosted.guests.signal(10)
    assert (await hosted.outcome("a"))["exit_code"] == 7
    await asyncio.wait_for(hosted.guests.close(0.0), DEADLINE_S)


async def test_the_guests_of_a_lost_leader_are_recorded_as_ended_and_not_run_again(tmp_path: Path) -> None:
    hosted = Hosted(tmp_path, [{"id": "old", "state": "running", "exit_code": None}])
    hosted.request("old", "touch again")
    serving = hosted.serve()
    assert (await hosted.outcome("old"))["exit_code"] == INFRASTRUCTURE_FAILED
    hosted.request("new", "exit 0")
    await hosted.outcome("new")  # a later poll has read both requests
    assert not (tmp_path / "again").exists()
    await asyncio.wait_for(hosted.guests.close(0.0), DEADLINE_S)
    await asyncio.wait_for(serving, DEADLINE_S)


async def test_an_incomplete_request_is_ignored(hosted: Hosted) -> None:
    write_json(hosted.attempt.guest_request("half"), {"command": ["true"]})
    hosted.request("whole", "exit 0")
    requests, stops = hosted.guests._read_requests(frozenset(), set())
    assert (list(requests), stops) == (["whole"], set())
