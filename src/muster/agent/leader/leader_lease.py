"""Whether this leader may act: it keeps the roster and the lease up to date, and says when the lease is over.

The edge around `election/quorum_lease.py`. A run whose leader nobody can follow has no lease: its leader may always
act.
"""

from __future__ import annotations

import asyncio
import time

from muster.agent.control.connections import Connections
from muster.election.membership import Membership
from muster.election.quorum_lease import FOREVER, QuorumLease
from muster.election.roster import Roster
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import ENDED, RunState
from muster.process.lease import ProcessLease

LOOK_S = 0.5
ENTITLE_S = 30.0  # a leader that has no majority for its first driver in this time will not get one


class LeaderLease:
    """`may_drive` returns when a cycle's driver may start; `watch` when nothing may be done any more."""

    def __init__(
        self, protocol: RunStateMachine, members: Connections, membership: Membership, lease: ProcessLease | None
    ) -> None:
        self._protocol, self._members, self._lease = protocol, members, lease
        self._quorum, self._roster = QuorumLease(membership), Roster(protocol)
        self._told = False  # the members know of a roster that was made by this leader
        self._entitled = lease is None
        self._news = asyncio.Event()
        self._over = False

    @property
    def membership(self) -> Membership:
        return self._quorum.membership

    def joined(self, rank: int, spoken: float, version: int) -> None:
        """A member is there; what it answers from now on counts."""
        if self._lease is not None:
            self._tell(self._quorum.answered(rank, spoken, version))
            self._members.send(rank, "charter", **self.membership.as_record())

    def answered(self, rank: int, sent: float | None, version: int) -> None:
        if self._lease is not None:
            self._tell(self._quorum.answered(rank, sent, version))
            self._renew()

    def died(self, rank: int) -> None:
        """The launcher saw its process end: it can follow nobody else. (An ended connection is no proof of that.)"""
        if self._lease is not None:
            self._tell(self._quorum.died(rank))
            self._renew()

    def look(self) -> None:
        """After every event: who is to count now. One change at a time."""
        protocol = self._protocol
        if self._lease is None or protocol.state in ENDED or protocol.outcome is not None or self.membership.before:
            return
        if (protocol.state is RunState.GATHERING and not self._told) or not self._roster.changed():
            return  # who counted before does so until it is known who is there
        proposed = self._quorum.propose(self._roster.there, self._roster.excluded, protocol.cycle)
        first, self._told = not self._told, True
        self._tell(proposed or first)
        self._renew()

    async def may_drive(self, cycle: int) -> None:
        """Until nobody can come after us without knowing of this cycle; a leader that cannot get there gives way."""
        deadline = time.monotonic() + ENTITLE_S
        while not self._knows_of(cycle):
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), max(0.0, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                self._over = self._over or not self._entitled
                deadline = float("inf")

    def _knows_of(self, cycle: int) -> bool:
        known = self._lease is None or (self._quorum.settled and self.membership.cycle == cycle)
        return self._entitled and known

    def _tell(self, changed: bool) -> None:
        if changed:
            self._members.send_all("charter", **self.membership.as_record())
            self.look()
        self._news.set()

    def _renew(self) -> None:
        """From when a roster of this leader's own is in force; before that it runs nothing that must not run twice."""
        assert self._lease is not None
        now = time.monotonic()
        if self._lease.expired or not (self._entitled or (self._told and self._quorum.take(now))):
            return  # what has ended once is not renewed: others may have gone on
        self._entitled = True
        until = self._quorum.lease()
        if until == FOREVER:
            self._lease.clear()
        else:
            self._lease.renew(max(until - now, 0.0))
        self._news.set()

    async def watch(self) -> None:
        """Returns when the lease is over: others may go on without us."""
        while not self.over:
            await asyncio.sleep(LOOK_S)

    @property
    def over(self) -> bool:
        return self._over or (self._lease is not None and self._lease.expired)
