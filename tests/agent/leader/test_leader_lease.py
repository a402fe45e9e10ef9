"""The leader's lease in the agent: messages to members, the lease of the processes, and waiting cycles."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import pytest

from muster.agent.control.codec import Message
from muster.agent.control.connections import Connections
from muster.agent.control.messages import MembershipUpdate
from muster.agent.leader import leader_lease
from muster.agent.leader.leader_lease import LeaseExecutor
from muster.election.leader_lease import FIRST_LEASE_TIMEOUT_S
from muster.election.membership import first_membership
from muster.election.timing import LEASE_S
from muster.lifecycle.config import RESTART, RunConfig
from muster.lifecycle.events import Arrived
from muster.lifecycle.state_machine import RunStateMachine
from muster.process.lease import ProcessLease
from muster.process.supervisor import lease_clock

DEADLINE_S = 120.0


class RecordingConnections:
    """Keeps the receivers of each membership version; -1 stands for all members."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.beats = 0

    def send(self, node_index: int, message: Message) -> None:
        assert isinstance(message, MembershipUpdate)
        self.sent.append((node_index, message.membership.version))

    def beat_once(self) -> None:
        self.beats += 1

    def send_all(self, message: Message) -> None:
        self.send(-1, message)


class LeaderOfThree:
    """A leader whose two members have joined; its lease is not held yet."""

    def __init__(self) -> None:
        config = RunConfig(["n0", "n1", "n2"], ray=False, on_node_loss=RESTART, max_restarts=1)
        machine = RunStateMachine(config, time.monotonic())
        self.connections, self.process_lease = RecordingConnections(), ProcessLease()
        self.executor = LeaseExecutor(
            machine, cast(Connections, self.connections), first_membership(3), self.process_lease
        )
        for node_index in range(3):
            self.executor.on_join(node_index, time.monotonic(), -1)
            machine.handle(Arrived(node_index, f"n{node_index}"), time.monotonic())
            self.executor.update()

    def answer(self, sent: float) -> None:
        self.executor.on_answer(1, sent, self.executor.membership.version)


def test_members_get_the_membership_when_they_join_and_when_the_round_closes() -> None:
    leader = LeaderOfThree()
    assert leader.connections.sent == [(0, 0), (1, 0), (2, 0), (-1, 0)]


async def test_a_cycle_waits_for_the_answers_of_half_of_the_members() -> None:
    leader = LeaderOfThree()
    waiting = asyncio.ensure_future(leader.executor.wait_for_quorum(0))
    await asyncio.sleep(0)
    assert not waiting.done()
    leader.answer(time.monotonic())
    await asyncio.wait_for(waiting, DEADLINE_S)


def test_answers_renew_the_lease_of_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, renewed = LeaderOfThree(), []
    monkeypatch.setattr(leader.process_lease, "renew", renewed.append)
    leader.answer(time.monotonic())
    assert len(renewed) == 1 and 0 < renewed[0] <= LEASE_S


async def test_an_expired_lease_of_the_processes_ends_the_term_and_is_never_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = LeaderOfThree()
    leader.answer(time.monotonic())
    assert not leader.executor.over
    leader.process_lease.renew(0.0)
    monkeypatch.setattr(leader.process_lease, "renew", lambda seconds: pytest.fail("renewed"))
    leader.answer(time.monotonic())
    assert leader.executor.over
    leader.executor.tick()
    before = list(leader.connections.sent)
    leader.executor.on_join(2, time.monotonic(), -1)
    leader.executor.update()
    assert leader.connections.sent == before


async def test_an_outcome_waits_for_the_answers_of_half_of_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, now = LeaderOfThree(), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + LEASE_S + 1.0)
    waiting = asyncio.ensure_future(leader.executor.wait_for_outcome())
    await asyncio.sleep(0)
    assert not waiting.done()
    leader.answer(now + LEASE_S)
    assert await waiting


async def test_a_leader_that_gets_no_majority_records_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, now = LeaderOfThree(), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + LEASE_S + 1.0)
    waiting = asyncio.ensure_future(leader.executor.wait_for_outcome())
    await asyncio.sleep(0)
    monkeypatch.setattr(time, "monotonic", lambda: now + LEASE_S + 1.0 + FIRST_LEASE_TIMEOUT_S)
    leader.executor.tick()
    assert not await waiting


# -- a suspended job ------------------------------------------------------------------------------------------------


class SuspendedLeader(LeaderOfThree):
    """Such a leader, after a suspension that was longer than its lease."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.answer(time.monotonic())
        assert not self.executor.over
        self.process_lease.renew(0.0)  # it would have expired meanwhile
        now, boot = time.monotonic() + 60.0, lease_clock() + 60_000_000_000
        patch.setattr(time, "monotonic", lambda: now)
        patch.setattr(leader_lease, "lease_clock", lambda: boot)

    def answer_from(self, *node_indexes: int) -> None:
        for node_index in node_indexes:
            self.executor.on_answer(node_index, time.monotonic(), self.executor.membership.version)


def test_a_resumed_leader_asks_its_members_and_acts_again_when_they_have_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = SuspendedLeader(monkeypatch)
    assert leader.executor.lapsed and not leader.executor.over
    assert leader.connections.beats == 1
    assert leader.process_lease.expired
    leader.answer_from(0, 1)
    assert not leader.executor.lapsed and not leader.executor.over
    assert not leader.process_lease.expired


async def test_the_end_of_the_run_waits_until_a_resumed_leader_acts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = SuspendedLeader(monkeypatch)
    waiting = asyncio.ensure_future(leader.executor.wait_until_it_acts())
    await asyncio.sleep(0)
    assert not waiting.done()
    leader.answer_from(0, 1)
    assert await asyncio.wait_for(waiting, DEADLINE_S)


async def test_a_resumed_leader_whose_processes_were_killed_leads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = SuspendedLeader(monkeypatch)
    waiting = asyncio.ensure_future(leader.executor.wait_until_it_acts())
    await asyncio.sleep(0)
    monkeypatch.setattr(ProcessLease, "fenced", True)
    assert leader.executor.over
    leader.answer_from(0, 1)
    assert not await asyncio.wait_for(waiting, DEADLINE_S)
    assert leader.process_lease.expired
