"""A candidate for a term: listens, claims the term by publishing its address atomically, and admits members."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from muster.agent.control.connections import Connections
from muster.agent.job import Identity, Job
from muster.agent.leader.leader_address import LeaderAddress
from muster.election.campaign import ELECTION_TIMEOUT_S, Campaign
from muster.election.membership import Membership
from muster.lifecycle.config import TermStart
from muster.rundir import AttemptPaths, create_exclusive, read_record


@dataclass(frozen=True)
class JoinedMember:
    """A member's greeting, and when the last message that it answered was sent."""

    greeting: dict[str, Any]
    sent: float


class Candidate:
    """Collects the members that join it (`joined`) and their messages (`messages`) for the leader it becomes."""

    def __init__(self, identity: Identity, job: Job, token: bytes, term: int, membership: Membership) -> None:
        self._identity, self._membership, self.term = identity, membership, term
        self.connections = Connections(identity, token)
        ranks = range(job.step_nodes)
        self.connections.refusal = lambda rank, host: None if rank in ranks else f"there is no rank {rank}"
        self.leader_address = LeaderAddress(identity, job.interface, os.environ)
        self.joined: dict[int, JoinedMember] = {}
        self.messages: list[tuple[int, dict[str, Any]]] = []  # from members, for the leader
        self.term_start, self.membership = TermStart(leader=identity.rank), membership  # `win` replaces them
        self._campaign = Campaign(term, identity.rank, membership)
        self._changed = asyncio.Event()
        self.tasks: set[asyncio.Future[Any]] = set()  # including those of the connections
        self.connections.on_task = self._background
        self.connections.on_join, self.connections.on_answer = self._on_join, self._on_answer
        self.connections.on_loss = self._on_loss
        self.connections.on_message = lambda rank, message: self.messages.append((rank, message))

    async def claim(self) -> bool:
        """Claim the term and return whether it succeeded; False if another node has claimed it."""
        port = await self.connections.listen()
        identity, cycle = self._identity, self._membership.cycle
        record = {"term": self.term, "rank": identity.rank, "host": identity.host, "cycle": cycle}
        record.update(addresses=self.leader_address.addresses, port=port)
        if await asyncio.to_thread(create_exclusive, identity.attempt.leader(self.term), record):
            self._background(self.connections.beat())
            return True
        self.connections.close_all()
        return False

    async def win(self, reason: str) -> bool:
        """Wait for a majority and return whether it joined in time; if not, release the members that did."""
        deadline = time.monotonic() + ELECTION_TIMEOUT_S
        while not self._campaign.won:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                await self.connections.release("retire")
                self.cancel_tasks()
                return False
        without_progress = cycles_without_progress(self._identity.attempt)
        self.term_start = replace(self._campaign.term_start(reason), without_progress=without_progress)
        self.membership = self._campaign.new_membership()
        return True

    def cancel_tasks(self) -> None:
        for task in self.tasks:
            task.cancel()

    def _on_join(self, rank: int, greeting: dict[str, Any], sent: float) -> None:
        self.joined[rank] = JoinedMember(greeting, sent)
        known = greeting.get("charter")
        self._campaign.add(rank, Membership.from_record(known) if known else self._membership, sent)
        self._changed.set()

    def _on_answer(self, rank: int, sent: float | None, version: int) -> None:
        if rank in self.joined and sent is not None:
            self.joined[rank] = JoinedMember(self.joined[rank].greeting, sent)

    def _on_loss(self, rank: int, reason: str) -> None:
        self.joined.pop(rank, None)
        self._campaign.remove(rank)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def cycles_without_progress(attempt: AttemptPaths) -> int:
    """Return the number of consecutive last cycles without progress, from the previous leader's status."""
    terms = attempt.terms()
    cycles = read_record(attempt.status(terms[-1])).get("cycles", []) if terms else []
    return next((count for count, cycle in enumerate(reversed(cycles)) if cycle.get("progress")), len(cycles))
