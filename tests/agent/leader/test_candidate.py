"""The candidate for a term."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import DEADLINE_S, GREETING, TOKEN, identity

from muster.agent import run_directory
from muster.agent.control.channel import connect
from muster.agent.control.connections import AgentJoined, AgentLost, AgentMessage, HeartbeatAnswered
from muster.agent.control.messages import CONTROL_PROTOCOL, Note, Refusal
from muster.agent.job import Job
from muster.agent.leader import candidate as candidate_module
from muster.agent.leader.candidate import Candidate, cycles_without_progress
from muster.agent.run_directory import RunDirectoryError
from muster.election.follower import Campaign
from muster.election.membership import Membership, first_membership
from muster.rundir import write_json

MEMBER = replace(GREETING, node_index=1, host="n1")
ALONE = Membership(0, 0, 2, 7, frozenset({1}))  # node 1 is a majority


def candidate(directory: Path, term: int, membership: Membership) -> Candidate:
    agent = identity(directory, 1)
    return Candidate(agent, Job.load(agent.run), TOKEN, Campaign(term, membership), "n0 is gone")


@pytest.mark.parametrize(
    ("progress", "count"), [([], 0), ([False, False], 2), ([True], 0), ([True, False, False], 2), ([False, True], 0)]
)
def test_the_last_cycles_without_progress_are_counted(tmp_path: Path, progress: list[bool], count: int) -> None:
    attempt = identity(tmp_path, 0).attempt
    write_json(attempt.status(0), {"cycles": [{"progress": made} for made in progress]})
    assert cycles_without_progress(attempt, before=99) == count


@pytest.mark.parametrize(("progress", "count"), [([False, False], 9), ([True, False], 1)])
def test_cycles_that_the_status_does_not_list_any_more_are_counted(
    tmp_path: Path, progress: list[bool], count: int
) -> None:
    attempt = identity(tmp_path, 0).attempt
    cycles = [{"progress": made} for made in progress]
    status = {"cycles": cycles, "cycles_dropped": 40, "cycles_dropped_without_progress": 7}
    write_json(attempt.status(0), status)
    assert cycles_without_progress(attempt, before=99) == count


def test_a_cycle_whose_driver_never_ran_is_not_counted(tmp_path: Path) -> None:
    attempt = identity(tmp_path, 0).attempt
    write_json(attempt.status(0), {"cycles": [{"cycle": number, "progress": False} for number in range(3)]})
    assert cycles_without_progress(attempt, before=2) == 2


def test_without_a_status_no_cycle_is_counted(tmp_path: Path) -> None:
    assert cycles_without_progress(identity(tmp_path, 0).attempt, before=1) == 0


async def test_a_term_has_one_candidate_and_the_first_term_is_won_by_its_claim(tmp_path: Path) -> None:
    first, second = (candidate(tmp_path, 0, first_membership(3, 1)) for _ in range(2))
    assert await first.claim() and not await second.claim()
    assert await asyncio.wait_for(first.win(), DEADLINE_S)
    assert (first.term_start.term, first.term_start.leader) == (0, 1) and first.membership == first_membership(3, 1)
    first.abandon()


async def test_a_new_leader_continues_after_the_cycles_of_the_last_one(tmp_path: Path) -> None:
    write_json(identity(tmp_path, 1).attempt.status(0), {"cycles": [{"progress": True}, {"progress": False}]})
    made = candidate(tmp_path, 1, ALONE)
    assert await made.claim()
    made.inbox.post(AgentJoined(MEMBER, 5.0))
    assert await asyncio.wait_for(made.win(), DEADLINE_S)
    assert (made.term_start.cycle, made.term_start.without_progress, made.membership.term) == (3, 1, 1)
    assert await made.inbox.next() == AgentJoined(MEMBER, 5.0)
    made.abandon()


async def test_a_candidate_sends_heartbeats_while_its_claim_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, beat, real = threading.Event(), asyncio.Event(), candidate_module.create_exclusive

    def create_slowly(path: str, record: dict[str, Any]) -> bool:
        return answers.wait(DEADLINE_S) and real(path, record)

    async def send_heartbeats() -> None:
        beat.set()

    monkeypatch.setattr(candidate_module, "create_exclusive", create_slowly)
    made = candidate(tmp_path, 1, ALONE)
    monkeypatch.setattr(made.connections, "beat", send_heartbeats)
    claim = asyncio.create_task(made.claim())
    try:
        await asyncio.wait_for(beat.wait(), DEADLINE_S)
        assert not claim.done()
    finally:
        answers.set()
    assert await claim
    made.abandon()


async def test_a_candidate_whose_filesystem_hangs_releases_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(candidate_module, "cycles_without_progress", lambda attempt, before: answers.wait())
    monkeypatch.setattr(candidate_module, "ELECTION_TIMEOUT_S", 0.1)
    made = candidate(tmp_path, 1, ALONE)
    assert await made.claim()
    made.inbox.post(AgentJoined(MEMBER, 5.0))
    try:
        assert not await asyncio.wait_for(made.win(), DEADLINE_S)
    finally:
        answers.set()


async def test_the_leader_gets_the_members_as_they_are_now_and_all_their_messages(tmp_path: Path) -> None:
    """Three nodes: the candidate wins when two have joined. One that left does not join the leader."""
    made = candidate(tmp_path, 1, Membership(0, 0, 2, 7, frozenset({1, 2, 3, 4})))
    assert await made.claim()
    members = [replace(GREETING, node_index=node_index, host=f"n{node_index}") for node_index in (2, 1, 0)]
    made.inbox.post(AgentJoined(members[0], 4.0))
    made.inbox.post(AgentMessage(2, Note("early")))
    made.inbox.post(AgentJoined(members[2], 4.5))
    made.inbox.post(HeartbeatAnswered(2, 6.0, 7))
    made.inbox.post(AgentLost(0, "is gone", 4.5))
    made.inbox.post(AgentJoined(members[1], 5.0))
    third = replace(GREETING, node_index=3, host="n3")
    made._nodes = 4
    made.inbox.post(AgentJoined(third, 5.5))
    made.inbox.post(AgentLost(2, "is gone", 6.0))  # after the election: the leader handles it
    assert await asyncio.wait_for(made.win(), DEADLINE_S)
    events = [await made.inbox.next() for _ in range(5)]
    assert events == [
        AgentJoined(members[0], 6.0),
        AgentJoined(members[1], 5.0),
        AgentJoined(third, 5.5),
        AgentMessage(2, Note("early")),
        AgentLost(2, "is gone", 6.0),
    ]
    made.abandon()


async def test_a_node_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    made = candidate(tmp_path, 1, Membership(0, 0, 2, 7, frozenset({1, 2})))
    assert await made.claim()
    port = made.connections._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    winning = asyncio.ensure_future(made.win())
    wrong = await connect(["127.0.0.1"], port, TOKEN, CONTROL_PROTOCOL, replace(GREETING, node_index=7))
    while not isinstance(message := await asyncio.wait_for(wrong.receive(), DEADLINE_S), Refusal):
        assert message is not None
    assert message == Refusal("there is no node 7")
    winning.cancel()
    made.abandon()


async def test_a_claim_is_repeated_while_the_filesystem_fails_and_is_recognized_if_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt claims the term, but its reply is lost."""
    failures, real = [errno.ENOTCONN, errno.EIO], candidate_module.create_exclusive

    def create(path: str, record: dict[str, Any]) -> bool:
        created = real(path, record)
        if failures:
            raise OSError(failures.pop(), "lost")
        return created

    monkeypatch.setattr(candidate_module, "create_exclusive", create)
    monkeypatch.setattr(run_directory, "RETRY_INTERVAL_S", 0.01)
    made = candidate(tmp_path, 0, first_membership(3, 1))
    assert await made.claim()
    assert failures == []
    made.abandon()


async def test_a_later_term_is_not_claimed_while_the_filesystem_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other members look for a leader meanwhile."""

    def fail(path: str, record: dict[str, Any]) -> bool:
        raise OSError(errno.ENOTCONN, "not connected")

    monkeypatch.setattr(candidate_module, "create_exclusive", fail)
    with pytest.raises(RunDirectoryError, match="not connected"):
        await candidate(tmp_path, 1, ALONE).claim()
