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
    AuthorizeOutcome,
    Broadcast,
    LeaderLease,
    LeaseEffect,
    RenewLease,
    RequestAnswers,
    SendMembership,
)
from muster.election.membership import Membership
from muster.lifecycle.state_machine import RunStateMachine
from muster.process.lease import ProcessLease
from muster.process.running_time import RunningTime
from muster.process.supervisor import lease_clock

logger = logging.getLogger(__name__)


class LeaseExecutor:
    """`wait_for_quorum` returns when a cycle's driver may start, `wait_for_outcome` when the run may be concluded.

    `over` is set when the lease has ended, `lapsed` while this node does not know whether another one leads: it was
    stopped longer than its lease. Every method first checks whether this process was stopped.
    """

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
        self._outcome_decided = asyncio.Event()
        self._resigned = False
        self._running_time = RunningTime()
        self._acts = asyncio.Event()  # the lease is not lapsed
        self._acts.set()

    @property
    def membership(self) -> Membership:
        return self._lease.membership

    def last_membership(self, successor: int) -> Membership:
        """Return the membership to send before this leader steps down (`LeaderLease.last_membership`)."""
        return self._lease.last_membership(successor)

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

    async def wait_for_outcome(self) -> bool:
        """Wait until no other node can contradict the outcome and return True; False if this node leads no more."""
        if not self.over:
            self._execute(self._lease.outcome_wanted(time.monotonic()))
            await self._outcome_decided.wait()
        return not self.over

    async def wait_until_it_acts(self) -> bool:
        """Wait while the lease is lapsed; return False if this node leads no more."""
        while self.lapsed:
            self._acts.clear()
            await self._acts.wait()
        return not self.over

    def tick(self) -> None:
        """Check whether the lease has ended. Called regularly: more often than STALL_S."""
        if not self.over:
            self._execute(self._lease.tick(time.monotonic()))

    def resign(self) -> None:
        """Stop acting before the lease ends: this leader has released its members, or has failed."""
        self._resigned = True

    @property
    def over(self) -> bool:
        """Whether this leader must not act any more."""
        stopped = self._running_time.observe(lease_clock() / 1e9)
        if stopped:
            expired = self._process_lease.expired
            self._execute(self._lease.resumed(stopped, time.monotonic(), expired))
        if self._process_lease.fenced:
            self._execute(self._lease.fenced())
        elif self._process_lease.expired and not self._lease.lapsed:
            self._execute(self._lease.expired(time.monotonic()))
        return self._resigned or self._lease.over

    @property
    def lapsed(self) -> bool:
        """Whether this leader must not act now, and may act later."""
        return not self.over and self._lease.lapsed

    def _execute(self, effects: Iterable[LeaseEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Broadcast):
                self._connections.send_all(MembershipUpdate(effect.membership))
            elif isinstance(effect, SendMembership):
                self._connections.send(effect.node_index, MembershipUpdate(effect.membership))
            elif isinstance(effect, RenewLease):
                self._renew(effect)
            elif isinstance(effect, AuthorizeCycle):
                self._authorized[effect.cycle].set()
            elif isinstance(effect, AuthorizeOutcome):
                self._outcome_decided.set()
            elif isinstance(effect, RequestAnswers):
                self._connections.beat_once()
            else:
                self._outcome_decided.set()
                self._acts.set()
                logger.warning("this node stops leading: %s", effect.reason)

    def _renew(self, effect: RenewLease) -> None:
        if self._process_lease.fenced or (self._process_lease.expired and not effect.again):
            return  # since `over` was checked
        if effect.until is None:
            self._process_lease.clear()
        else:
            self._process_lease.renew(max(effect.until - time.monotonic(), 0.0))
        self._acts.set()
