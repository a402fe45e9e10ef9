"""The leader's lease in the agent: messages to members, the lease of the processes, and waiting cycles."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import pytest

from muster.agent.control.codec import Message
from muster.agent.control.connections import Connections
from muster.agent.control.messages import MembershipUpdate
from muster.agent.leader.leader_lease import LeaseExecutor
from muster.election.membership import first_membership
from muster.election.timing import LEASE_S
from muster.lifecycle.config import RESTART, RunConfig
from muster.lifecycle.events import Arrived
from muster.lifecycle.state_machine import RunStateMachine
from muster.process.lease import ProcessLease

DEADLINE_S = 120.0


class RecordingConnections:
    """Keeps the receivers of each membership version; -1 stands for all members."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []

    def send(self, node_index: int, message: Message) -> None:
        assert isinstance(message, MembershipUpdate)
        self.sent.append((node_index, message.membership.version))

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
