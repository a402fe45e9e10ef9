"""A candidate for a term: listens, claims the term by publishing its address atomically, and admits members.

`election/candidate.py` decides whether it has won.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from muster.agent.control.connections import AgentJoined, AgentLost, Connections, HeartbeatAnswered
from muster.agent.control.messages import Greeting, Retirement
from muster.agent.event_loop import running_now
from muster.agent.job import Identity, Job
from muster.agent.leader.inbox import Inbox, LeaderEvent, TimePassed
from muster.agent.leader.leader_address import LeaderAddress
from muster.agent.run_directory import FILESYSTEM_TIMEOUT_S, RunDirectoryError, retried
from muster.election.candidate import ELECTION_TIMEOUT_S, Candidacy, CandidacyEffect, Win
from muster.election.follower import Campaign
from muster.lifecycle.config import TermStart
from muster.rundir import AttemptPaths, create_exclusive, read_record
from muster.rundir.records import newest_published


class Candidate:
    """Handles the events of its connections until it wins; `inbox` then has what the leader it becomes must know."""

    def __init__(self, identity: Identity, job: Job, token: bytes, campaign: Campaign, reason: str) -> None:
        """`reason`: why the last leader was lost."""
        self._identity, self.term, self._nodes = identity, campaign.term, job.step_nodes
        self.inbox = Inbox()
        self.connections = Connections(identity, token, self.inbox)
        self.leader_address = LeaderAddress(identity.local, job.interface, os.environ)
        self.term_start: TermStart  # set by `win`, as are the first membership and `in_use`
        self.membership = campaign.membership
        self.in_use: frozenset[int] | None = None
        self._candidacy = Candidacy(campaign.term, identity.node_index, campaign.membership, reason, campaign.in_use)
        self._greetings: dict[int, Greeting] = {}
        self._deferred: list[LeaderEvent] = []  # for the leader
        self._effect: CandidacyEffect | None = None  # at most one in a candidacy

    async def claim(self) -> bool:
        """Claim the term and return whether it succeeded; False if another node has claimed it.

        Raises RunDirectoryError if the filesystem fails. The first term is tried for longer: no other node may lead.
        """
        port = await self.connections.listen()
        self.inbox.spawn(self.connections.beat())  # members may join before a slow filesystem has answered
        identity, cycle = self._identity, self.membership.cycle
        record = {"term": self.term, "rank": identity.node_index, "host": identity.host, "cycle": cycle}
        record.update(addresses=self.leader_address.addresses, port=port)
        path, timeout = identity.attempt.leader(self.term), FILESYSTEM_TIMEOUT_S if self.term == 0 else 0.0
        try:
            claimed = await retried(path, _create_claim, path, record, timeout=timeout)
        except RunDirectoryError:
            self.abandon()
            raise
        if claimed:
            self.inbox.start_clock()
            self._note(self._candidacy.claimed(running_now()))
            return True
        self.abandon()
        return False

    async def win(self) -> bool:
        """Wait until the term is won and return True; release the members and return False if it is not."""
        while self._effect is None:
            self._handle(await self.inbox.next())
        if isinstance(self._effect, Win):
            try:  # a candidate must not keep its members while its filesystem hangs
                self.term_start = await asyncio.wait_for(self._start(self._effect.term_start), ELECTION_TIMEOUT_S)
            except asyncio.TimeoutError:
                pass
            else:
                self.membership, self.in_use = self._effect.membership, self._effect.in_use
                self._hand_over()
                return True
        await self.retire()
        return False

    async def retire(self) -> None:
        """Release the members: this node does not lead."""
        await self.connections.release(Retirement(None))
        self.inbox.cancel_tasks()

    def abandon(self) -> None:
        """Close the connections: this candidate has failed, and its members must not wait for it."""
        self.connections.close_all()
        self.inbox.cancel_tasks()

    async def _start(self, start: TermStart) -> TermStart:
        if not self.term:
            return start
        last = start.cycle - (2 if start.handed_over else 1)  # the last cycle whose driver may have run
        without_progress = await asyncio.to_thread(cycles_without_progress, self._identity.attempt, last + 1)
        return replace(start, without_progress=without_progress)

    def _hand_over(self) -> None:
        """Let the leader begin with the joined members, as of now, and with all events that this candidate deferred."""
        sent = self._candidacy.sent
        joined = [AgentJoined(self._greetings[node_index], sent[node_index]) for node_index in sent]
        self.inbox.put_back([*joined, *self._deferred])

    def _handle(self, event: LeaderEvent) -> None:
        if isinstance(event, AgentJoined):
            self._on_agent_joined(event)
        elif isinstance(event, HeartbeatAnswered):
            self._candidacy.answered(event.node_index, event.sent)
        elif isinstance(event, AgentLost):
            self._candidacy.lost(event.node_index)
        elif isinstance(event, TimePassed):
            self._note(self._candidacy.tick(running_now()))
        else:
            self._deferred.append(event)

    def _on_agent_joined(self, event: AgentJoined) -> None:
        greeting, node_index = event.greeting, event.greeting.node_index
        if node_index in range(self._nodes):
            self._greetings[node_index] = greeting
            self._note(self._candidacy.joined(node_index, greeting.membership, event.sent))
        else:
            self.connections.refuse(node_index, f"there is no node {node_index}")

    def _note(self, effects: Iterable[CandidacyEffect]) -> None:
        for effect in effects:
            self._effect = effect


def _create_claim(path: str, record: dict[str, Any]) -> bool:
    """Create the claim. After a failed attempt it may exist: then its record is this one."""
    return create_exclusive(path, record) or read_record(path) == record


def cycles_without_progress(attempt: AttemptPaths, before: int) -> int:
    """Return the number of consecutive last cycles before this one without progress, from the previous status.

    The last leader may have stepped down before the driver of its cycle ran: that cycle does not count.
    """
    status = newest_published(attempt) or {}
    cycles = [cycle for cycle in status.get("cycles", []) if cycle.get("cycle", 0) < before]
    earlier = status.get("cycles_dropped_without_progress", 0)
    return next((count for count, cycle in enumerate(reversed(cycles)) if cycle.get("progress")), len(cycles) + earlier)
