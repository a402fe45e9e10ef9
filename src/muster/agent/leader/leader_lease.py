"""The leader's lease, which allows it to act: updates the membership, renews the lease, and reports its end.

`election/quorum_lease.py` decides. In a run without failover there is no lease: its leader may always act.
"""

from __future__ import annotations

import asyncio
import time

from muster.agent.control.connections import Connections
from muster.election.membership import Membership
from muster.election.quorum_lease import NEVER, QuorumLease
from muster.election.roster import Roster
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import ENDED, RunState
from muster.process.lease import ProcessLease

LEASE_POLL_S = 0.5
QUORUM_TIMEOUT_S = 30.0  # a leader that has no majority for its first driver in this time will not get one


class LeaderLease:
    """`wait_for_quorum` returns when a cycle's driver may start; `watch` when the lease has ended."""

    def __init__(
        self, machine: RunStateMachine, connections: Connections, membership: Membership, lease: ProcessLease | None
    ) -> None:
        self._machine, self._connections, self._lease = machine, connections, lease
        self._quorum, self._roster = QuorumLease(membership), Roster(machine)
        self._published = False  # the members have a membership from this leader
        self._entitled = lease is None
        self._changed = asyncio.Event()
        self._over = False

    @property
    def membership(self) -> Membership:
        return self._quorum.membership

    def on_join(self, rank: int, sent: float, version: int) -> None:
        """Count the member's answers from now on, and send it the membership."""
        if self._lease is not None:
            self._publish(self._quorum.answered(rank, sent, version))
            self._connections.send(rank, "charter", **self.membership.as_record())

    def on_answer(self, rank: int, sent: float | None, version: int) -> None:
        if self._lease is not None:
            self._publish(self._quorum.answered(rank, sent, version))
            self._renew()

    def on_death(self, rank: int) -> None:
        """The launcher saw the process end: it can follow no other leader. An ended connection does not prove that."""
        if self._lease is not None:
            self._publish(self._quorum.died(rank))
            self._renew()

    def update(self) -> None:
        """Propose a new membership if the nodes have changed. Called after every event; one change at a time."""
        machine = self._machine
        if self._lease is None or machine.state in ENDED or machine.outcome is not None or self.membership.before:
            return
        if (machine.state is RunState.GATHERING and not self._published) or not self._roster.update():
            return  # until the nodes are gathered, the previous membership is in force
        proposed = self._quorum.propose(self._roster.members, self._roster.excluded, machine.cycle)
        first, self._published = not self._published, True
        self._publish(proposed or first)
        self._renew()

    async def wait_for_quorum(self, cycle: int) -> None:
        """Wait until every later leader would know of this cycle; a leader without a majority steps down."""
        deadline = time.monotonic() + QUORUM_TIMEOUT_S
        while not self._is_known(cycle):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.0, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                self._over = self._over or not self._entitled
                deadline = float("inf")

    def _is_known(self, cycle: int) -> bool:
        known = self._lease is None or (self._quorum.settled and self.membership.cycle == cycle)
        return self._entitled and known

    def _publish(self, changed: bool) -> None:
        if changed:
            self._connections.send_all("charter", **self.membership.as_record())
            self.update()
        self._changed.set()

    def _renew(self) -> None:
        """Renew the lease once a membership of this leader is in force; before that it runs no driver."""
        assert self._lease is not None
        now = time.monotonic()
        if self._lease.expired or not (self._entitled or (self._published and self._quorum.acquire(now))):
            return  # an expired lease is never renewed: others may have taken over
        self._entitled = True
        until = self._quorum.expires_at()
        if until == NEVER:
            self._lease.clear()
        else:
            self._lease.renew(max(until - now, 0.0))
        self._changed.set()

    async def watch(self) -> None:
        """Return when the lease has ended: another node may take over."""
        while not self.over:
            await asyncio.sleep(LEASE_POLL_S)

    @property
    def over(self) -> bool:
        return self._over or (self._lease is not None and self._lease.expired)
