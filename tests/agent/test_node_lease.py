"""The node's half of the control channel: when the processes of this node are under a lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import TOKEN, identity

from muster.agent.control.codec import Message
from muster.agent.control.messages import Heartbeat, MembershipUpdate, Welcome
from muster.agent.node import NodeAgent
from muster.election.membership import first_membership
from muster.election.timing import LEASE_S

UPDATE = MembershipUpdate(first_membership(3))


class RecordedChannel:
    """Delivers these messages, then ends."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = list(messages)

    async def receive(self) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def send(self, message: Message) -> None:
        pass


class RecordedLease:
    """Records when the lease would end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def renew(self, seconds: float) -> None:
        self.ends.append(time.monotonic() + seconds)


async def lease_ends(
    directory: Path, heard: float, *messages: Message, leads: bool = False, holds_lease: bool = False
) -> list[float]:
    """Return the ends of the lease after each message, in seconds after `heard`."""
    lease: Any = RecordedLease()
    node = NodeAgent(identity(directory, 1), TOKEN, lease)
    node.heard, node.leads, node.holds_lease = heard, leads, holds_lease
    channel: Any = RecordedChannel(messages)
    await node._read_loop(channel, asyncio.Queue())
    return [end - heard for end in lease.ends]


async def test_a_member_is_under_a_lease_from_its_first_membership_on(tmp_path: Path) -> None:
    (end,) = await lease_ends(tmp_path, time.monotonic(), UPDATE)
    assert end == pytest.approx(LEASE_S, abs=2.0)


async def test_a_later_membership_does_not_shorten_the_lease(tmp_path: Path) -> None:
    began = time.monotonic()
    ends = await lease_ends(tmp_path, began, UPDATE, Heartbeat(0.0, None), Heartbeat(0.0, began + 5.0), UPDATE)
    assert ends == pytest.approx([LEASE_S, LEASE_S, 5.0 + LEASE_S, 5.0 + LEASE_S], abs=2.0)


async def test_a_member_of_a_run_that_may_restart_is_under_a_lease_without_failover_too(tmp_path: Path) -> None:
    welcome = Welcome(0, False, None, False, None)
    ends = await lease_ends(tmp_path, time.monotonic(), welcome, Heartbeat(0.0, None), holds_lease=True)
    assert ends == pytest.approx([LEASE_S, LEASE_S], abs=2.0)
    assert await lease_ends(tmp_path, time.monotonic(), welcome, holds_lease=True, leads=True) == []


async def test_a_run_without_failover_and_the_leader_s_own_node_have_no_lease(tmp_path: Path) -> None:
    assert await lease_ends(tmp_path, time.monotonic(), Heartbeat(0.0, None)) == []
    assert await lease_ends(tmp_path, time.monotonic(), UPDATE, leads=True) == []
