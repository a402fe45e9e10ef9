"""Whether this lead may act: it keeps the roster and the lease up to date, and says when the lease is over.

The edge around `rendezvous/quorum.py`. A run whose lead nobody can follow has no lease: its lead may always act.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from muster.agent.members import Members
from muster.process.lease import Lease
from muster.rendezvous.charter import Charter
from muster.rendezvous.protocol import Protocol
from muster.rendezvous.quorum import FOREVER, Quorum
from muster.rendezvous.roles import Role
from muster.rendezvous.states import DEPARTED, NodeState, RunState

LOOK_S = 0.5


class Entitlement:
    """`entitled` is set when a driver may be started; `watch` returns when nothing may be done any more."""

    def __init__(self, protocol: Protocol, members: Members, charter: Charter, lease: Lease | None) -> None:
        self._protocol, self._members, self._lease = protocol, members, lease
        self._quorum = Quorum(charter)
        self._told = False  # the members know of a roster that was made by this lead
        self.entitled = asyncio.Event()
        if lease is None:
            self.entitled.set()

    @property
    def charter(self) -> Charter:
        return self._quorum.charter

    def joined(self, rank: int, spoken: float, version: int) -> None:
        """A member is there; what it answers from now on counts."""
        self._quorum.answered(rank, spoken, version)
        if self._lease is not None:
            self._members.send(rank, "charter", **self.charter.as_record())

    def answered(self, rank: int, sent: float | None, version: int) -> None:
        self._quorum.answered(rank, sent, version)
        self._renew()
        self.look()

    def lost(self, rank: int, silent: bool) -> None:
        """A process that has ended can follow nobody; one that is silent may."""
        if not silent:
            self._quorum.died(rank)
        self._renew()

    def look(self) -> None:
        """After every event: who is to count now. One change at a time."""
        if self._lease is None or not self._quorum.settled or self._protocol.outcome is not None:
            return
        gathering_first = self._protocol.state is RunState.GATHERING and not self._told
        if gathering_first and self.charter.term == 0:
            return  # every node of the allocation counts until it is known who is there
        nodes = self._protocol.nodes
        absent = (*DEPARTED, NodeState.EXPECTED)
        excluded = {node.rank for node in nodes if node.role is Role.EXCLUDED}
        there = {node.rank for node in nodes if node.state not in absent} - excluded
        if self._quorum.propose(there, excluded, self._protocol.cycle) or not self._told:
            self._told = True
            self._members.send_all("charter", **self.charter.as_record())
            self._renew()

    def without_lead(self) -> Charter:
        """What the members are to know when this lead goes of its own will."""
        charter = self.charter
        return replace(charter, version=charter.version + 1, excluded=charter.excluded | {charter.lead})

    def _renew(self) -> None:
        """From when a roster of this lead's own is in force; before that it runs nothing that must not run twice."""
        left = self._quorum.lease() - time.monotonic()
        first = not self.entitled.is_set()
        if self._lease is None or (first and (left <= 0 or not self._told or not self._quorum.settled)):
            return
        if left == FOREVER:
            self._lease.lift()
        else:
            self._lease.renew(max(left, 0.0))
        self.entitled.set()

    async def watch(self) -> None:
        """Returns when the lease is over: others may go on without us."""
        while self._lease is None or not self._lease.expired:
            await asyncio.sleep(LOOK_S)
