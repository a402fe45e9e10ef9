"""Agents that join late or after the run has ended, and agents that are left without a leader."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from tests.agent.conftest import DEADLINE_S, TOKEN, identity, next_event, serve_as_leader

from muster.agent import leaderless, run_directory
from muster.agent.control.connections import AgentJoined
from muster.agent.control.messages import Dismissal, Retirement
from muster.agent.follower import Follower, recorded_exit_code
from muster.agent.job import Job
from muster.agent.leader import candidate as candidate_module
from muster.agent.leader.candidate import Candidate
from muster.agent.leader.inbox import Inbox, SignalPassedOn, StopSignalled
from muster.agent.leader.leader import Leader
from muster.election import leader_silence
from muster.election.follower import Campaign
from muster.election.membership import first_membership
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.process.lease import ProcessLease
from muster.rundir import read_record, write_json
from muster.rundir.filesystem_type import probe_filesystem_type


async def test_a_late_agent_finds_the_leader_despite_a_newer_claim_that_failed(tmp_path: Path) -> None:
    inbox = Inbox()
    first = await serve_as_leader(identity(tmp_path, 0), 0, inbox)
    retired = await serve_as_leader(identity(tmp_path, 1), 1, Inbox())
    retired.close_all()
    late = asyncio.ensure_future(Follower(identity(tmp_path, 2), TOKEN, ProcessLease()).run())
    assert (await next_event(inbox, AgentJoined)).greeting.node_index == 2
    await first.release(Dismissal(7, "the driver exited with 7"))
    assert await asyncio.wait_for(late, DEADLINE_S) == 7
    first.close_all()


async def test_an_agent_needs_no_file_of_the_job_once_it_has_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading that is not repeated would cost the node when the filesystem fails for a while."""
    job = Job.load(identity(tmp_path, 2).run)
    readings: list[Job | OSError] = [OSError(errno.EIO, "Input/output error"), job, OSError(errno.EIO, "again")]

    def load(run: object) -> Job:
        if isinstance(reading := readings.pop(0), OSError):
            raise reading
        return reading

    monkeypatch.setattr(run_directory, "RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(Job, "load", load)
    inbox = Inbox()
    leader = await serve_as_leader(identity(tmp_path, 0), 0, inbox)
    agent = asyncio.ensure_future(Follower(identity(tmp_path, 2), TOKEN, ProcessLease()).run())
    assert (await next_event(inbox, AgentJoined)).greeting.node_index == 2
    await leader.release(Dismissal(0, "the driver exited with 0"))
    assert await asyncio.wait_for(agent, DEADLINE_S) == 0
    leader.close_all()


@pytest.mark.parametrize("code", [0, 3])
def test_an_agent_without_a_message_about_the_end_exits_with_the_recorded_code(tmp_path: Path, code: int) -> None:
    agent = identity(tmp_path, 2)
    write_json(agent.attempt.outcome, {"exit_code": code, "state": "whatever"})
    assert asyncio.run(asyncio.wait_for(Follower(agent, TOKEN, ProcessLease()).run(), DEADLINE_S)) == code


def test_an_outcome_without_an_exit_code_is_a_failure(tmp_path: Path) -> None:
    attempt = identity(tmp_path, 2).attempt
    assert recorded_exit_code(attempt) is None
    write_json(attempt.outcome, {"state": "whatever"})
    assert recorded_exit_code(attempt) == INFRASTRUCTURE_FAILED


def test_a_connection_that_ends_before_the_first_message_never_leads_to_exit_code_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run continues without this node: nothing is recorded, and the agent must not report success."""
    monkeypatch.setattr(leaderless, "LEADER_POLL_S", 0.02)
    monkeypatch.setattr(leader_silence, "LEADERLESS_AFTER_S", DEADLINE_S)

    async def play() -> None:
        leader, inbox = identity(tmp_path, 0), Inbox()
        serving = await serve_as_leader(leader, 0, inbox)
        write_json(leader.attempt.status(0), {"updated": 0})
        lost = asyncio.ensure_future(Follower(identity(tmp_path, 2), TOKEN, ProcessLease()).run())
        await next_event(inbox, AgentJoined)
        serving.close_all()
        updated = 0
        while not lost.done():  # the leader publishes
            updated += 1
            write_json(leader.attempt.status(0), {"updated": updated})
            await asyncio.wait([lost], timeout=0.05)
        assert lost.result() == INFRASTRUCTURE_FAILED and recorded_exit_code(leader.attempt) is None

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))


async def test_signals_reach_the_leader_as_soon_as_it_is_certain_that_this_node_leads(tmp_path: Path) -> None:
    follower, inbox = Follower(identity(tmp_path, 0), TOKEN, ProcessLease()), Inbox()
    follower.pass_on_signal(10)  # no node leads yet: ignored
    follower._inbox = inbox
    follower.on_signal(15, "the job received SIGTERM")
    follower.pass_on_signal(10)
    assert [await inbox.next() for _ in range(2)] == [
        StopSignalled("the job received SIGTERM", 15),
        SignalPassedOn(10),
    ]


async def test_a_winner_whose_filesystem_hangs_releases_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other nodes can lead a later term; of the first term it is the only leader."""
    own, answers = identity(tmp_path, 1), asyncio.Event()

    async def create(*args: object) -> None:
        await answers.wait()

    monkeypatch.setattr(Leader, "create", create)
    monkeypatch.setattr("muster.agent.follower.ELECTION_TIMEOUT_S", 0.05)
    follower = Follower(own, TOKEN, ProcessLease())
    follower._job = Job.load(own.run)
    candidate = Candidate(own, follower._job, TOKEN, Campaign(1, first_membership(3)), "n0 is gone")
    assert await candidate.claim()
    released: list[object] = []

    async def release(message: object) -> None:
        released.append(message)

    monkeypatch.setattr(candidate.connections, "release", release)
    await asyncio.wait_for(follower._lead(candidate), DEADLINE_S)
    assert released == [Retirement(None)] and follower._leading is None
    candidate.abandon()


def test_a_first_leader_that_cannot_claim_its_term_blames_the_filesystem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a read-only mount: no other node can lead either, so the run ends at once, with the reason."""

    def refuse(path: str, value: object) -> bool:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(candidate_module, "create_exclusive", refuse)
    agent = identity(tmp_path, 0)
    code = asyncio.run(asyncio.wait_for(Follower(agent, TOKEN, ProcessLease()).run(), DEADLINE_S))
    assert code == recorded_exit_code(agent.attempt) == INFRASTRUCTURE_FAILED
    kind = probe_filesystem_type(agent.attempt.root)
    expected = f"n0: the filesystem of the run directory ({kind}) failed: {agent.attempt.leader(0)}: Read-only"
    assert read_record(agent.attempt.outcome)["end_reason"].startswith(expected)
