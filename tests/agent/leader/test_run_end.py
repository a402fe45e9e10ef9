"""The end of a term: the published outcome, its reason, and the handover. `test_leader.py` shows whole terms."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.agent.leader.leader_doubles import LeaderParts

from muster.agent.control.messages import Dismissal, MembershipUpdate, Retirement
from muster.agent.leader.run_end import explained, hand_over, publish_outcome
from muster.agent.leader.services import LeaderServices
from muster.lifecycle.events import RunOutcome
from muster.rundir import read_record

SUCCESS = RunOutcome("succeeded", 0, "the driver exited with 0")
STOPPED = RunOutcome("stopped", 143, "the job received SIGTERM")
LIMIT = "slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"


async def test_the_outcome_is_the_last_thing_that_is_published(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path)
    regular = asyncio.ensure_future(asyncio.sleep(1000))
    assert await publish_outcome(parts.context, LeaderServices(parts.context), SUCCESS, False, [regular]) == 0
    assert read_record(parts.attempt.outcome)["exit_code"] == 0
    assert parts.sent.released == [Dismissal(0, SUCCESS.end_reason)]
    await asyncio.wait([regular])
    assert regular.cancelled()


async def test_without_the_lease_no_outcome_is_published(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path)
    parts.context.lease.resign()
    assert await publish_outcome(parts.context, LeaderServices(parts.context), SUCCESS, False, []) is None
    assert not Path(parts.attempt.outcome).exists() and parts.sent.released == []


async def test_the_reason_of_a_signal_is_added_if_slurm_has_given_it(tmp_path: Path) -> None:
    attempt = LeaderParts(tmp_path).attempt
    assert explained(STOPPED, attempt) == STOPPED
    Path(attempt.steps_log).write_text(LIMIT)
    assert explained(STOPPED, attempt).end_reason == "the job received SIGTERM: time limit"


async def test_the_nodes_know_the_last_membership_before_the_leader_retires(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path)
    last = parts.context.lease.last_membership(1)
    await hand_over(parts.context, "its check failed", last)
    assert parts.sent.sent == [(-1, MembershipUpdate(last))]
    assert parts.sent.released == [Retirement("its check failed")]
