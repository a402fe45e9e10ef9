"""Executes the effects of the leader's lease: messages to the members, the lease of the processes, the end of the term.

`election/leader_lease.py` decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from muster.agent.control.connections import Connections
from muster.agent.control.messages import MembershipUpdate
from muster.election.leader_lease import (
    AuthorizeCycle,
    Broadcast,
    LeaderLease,
    LeaseEffect,
    RenewLease,
    SendMembership,
)
from muster.election.membership import Membership
from muster.lifecycle.state_machine import RunStateMachine
from muster.process.lease import ProcessLease

logger = logging.getLogger(__name__)


class LeaseExecutor:
    """`wait_for_quorum` returns when a cycle's driver may start; `over` is set when the lease has ended."""

    def __init__(
        self,
        machine: RunStateMachine,
        connections: Connections,
        membership: Membership,
        lease: ProcessLease,
        in_use: frozenset[int] | None = None,
    ) -> None:
        self._connections, self._process_lease = connections, lease
        self._lease = LeaderLease(machine, membership, in_use)
        self._authorized: dict[int, asyncio.Event] = {}  # by cycle
        self._resigned = False

    @property
    def membership(self) -> Membership:
        return self._lease.membership

    def on_join(self, node_index: int, sent: float, version: int) -> None:
        if not self.over:
            self._execute(self._lease.joined(node_index, sent, version, time.monotonic()))

    def on_answer(self, node_index: int, sent: float | None, version: int) -> None:
        if not self.over:
            self._execute(self._lease.answered(node_index, sent, version, time.monotonic()))

    def on_death(self, node_index: int) -> None:
        if not self.over:
            self._execute(self._lease.died(node_index, time.monotonic()))

    def update(self) -> None:
        """Send a new membership if the nodes have changed. Called after every event."""
        if not self.over:
            self._execute(self._lease.run_changed(time.monotonic()))

    async def wait_for_quorum(self, cycle: int) -> None:
        """Wait until every later leader would know of this cycle."""
        authorized = self._authorized[cycle] = asyncio.Event()
        if not self.over:
            self._execute(self._lease.cycle_wanted(cycle, time.monotonic()))
        await authorized.wait()

    def tick(self) -> None:
        """Check whether the lease has ended. Called regularly."""
        if not self.over:
            self._execute(self._lease.tick(time.monotonic()))

    def resign(self) -> None:
        """Stop acting before the lease ends: this leader has released its members, or has failed."""
        self._resigned = True

    @property
    def over(self) -> bool:
        """Whether this leader must not act any more."""
        if not self._lease.over and self._process_lease.expired:
            self._execute(self._lease.expired())
        return self._resigned or self._lease.over

    def _execute(self, effects: Iterable[LeaseEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Broadcast):
                self._connections.send_all(MembershipUpdate(effect.membership))
            elif isinstance(effect, SendMembership):
                self._connections.send(effect.node_index, MembershipUpdate(effect.membership))
            elif isinstance(effect, RenewLease):
                self._renew(effect.until)
            elif isinstance(effect, AuthorizeCycle):
                self._authorized[effect.cycle].set()
            else:
                logger.warning("this node stops leading: %s", effect.reason)

    def _renew(self, until: float | None) -> None:
        if self._process_lease.expired:
            return  # since `over` was checked; an expired lease is never renewed
        if until is None:
            self._process_lease.clear()
        else:
            self._process_lease.renew(max(until - time.monotonic(), 0.0))
