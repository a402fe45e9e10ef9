"""The claim to a term: listen, publish where with one atomic link, and see who joins."""

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
from muster.election.campaign import ELECT_S, Campaign
from muster.election.membership import Membership
from muster.lifecycle.config import TermStart
from muster.rundir import AttemptPaths, create_exclusive, read_record


@dataclass(frozen=True)
class Joined:
    """A member as it came: what it said of itself, and when we last spoke to it."""

    greeting: dict[str, Any]
    spoken: float


class Candidate:
    """From the claim on; the leader that takes the seat finds everybody who has joined by then in `joined`."""

    def __init__(self, identity: Identity, job: Job, token: bytes, term: int, membership: Membership) -> None:
        self._identity, self._membership, self.term = identity, membership, term
        self.members = Connections(identity, token)
        self.members.refusal = lambda rank, host: None if rank in range(job.step_nodes) else f"there is no rank {rank}"
        self.leader_address = LeaderAddress(identity, job.interface, os.environ)
        self.joined: dict[int, Joined] = {}
        self.heard: list[tuple[int, dict[str, Any]]] = []  # from members, for the leader that takes the seat
        self.term_start, self.membership = (
            TermStart(leader=identity.rank),
            membership,
        )  # as term 0 begins; a later one has to win
        self._candidacy = Campaign(term, identity.rank, membership)
        self._changed = asyncio.Event()
        self.tasks: set[asyncio.Future[Any]] = set()  # also those of the connections
        self.members.on_task = self._background
        self.members.on_join, self.members.on_answer = self._join, self._answer
        self.members.on_loss = self._loss
        self.members.on_message = lambda rank, message: self.heard.append((rank, message))

    async def claim(self) -> bool:
        """False when another node has this term."""
        port = await self.members.listen()
        record = {
            "term": self.term,
            "rank": self._identity.rank,
            "host": self._identity.host,
            "cycle": self._membership.cycle,
            "addresses": self.leader_address.addresses,
            "port": port,
        }
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(None, create_exclusive, self._identity.attempt.leader(self.term), record):
            self._background(self.members.beat())
            return True
        self.members.close_all()
        return False

    async def win(self, reason: str) -> bool:
        """Whether a majority joins in time; if not, those who did are released."""
        deadline = time.monotonic() + ELECT_S
        while not self._candidacy.won:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                await self.members.release("retire")
                self.leave()
                return False
        without_progress = cycles_without_progress(self._identity.attempt)
        self.term_start = replace(self._candidacy.term_start(reason), without_progress=without_progress)
        self.membership = self._candidacy.new_membership()
        return True

    def leave(self) -> None:
        for task in self.tasks:
            task.cancel()

    def _join(self, rank: int, greeting: dict[str, Any], spoken: float) -> None:
        self.joined[rank] = Joined(greeting, spoken)
        known = greeting.get("charter")
        self._candidacy.joins(rank, Membership.from_record(known) if known else self._membership, spoken)
        self._changed.set()

    def _answer(self, rank: int, sent: float | None, version: int) -> None:
        if rank in self.joined and sent is not None:
            self.joined[rank] = Joined(self.joined[rank].greeting, sent)

    def _loss(self, rank: int, how: str) -> None:
        self.joined.pop(rank, None)
        self._candidacy.leaves(rank)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def cycles_without_progress(attempt: AttemptPaths) -> int:
    """How many of the last cycles, in a row, made no progress, as the leader before has published."""
    terms = attempt.terms()
    cycles = read_record(attempt.status(terms[-1])).get("cycles", []) if terms else []
    return next((count for count, cycle in enumerate(reversed(cycles)) if cycle.get("progress")), len(cycles))
