"""This node's way from leader to leader: find the first, follow it, and when it is lost join or become another.

The edge around `election/campaign.py`; what is decided there is carried out here, with files and connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from muster.agent.control.channel import Channel, ChannelError, connect
from muster.agent.first_leader import FirstLeaderElection
from muster.agent.job import Identity, Job
from muster.agent.leader.candidate import Candidate
from muster.agent.leader.leader import Leader
from muster.agent.leaderless import end_alone, end_left_job, has_outcome
from muster.agent.node import NodeAgent, Parting
from muster.agent.topology_probe import find_place
from muster.election.campaign import Claim, Election, Join, Leave
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES
from muster.election.membership import Membership, first_membership
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FIRST_LEADER
from muster.process.lease import ProcessLease
from muster.rundir import read_json, read_record, write_json
from muster.rundir.hosts import host_names

logger = logging.getLogger(__name__)

FIRST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0
LOOK_S = 0.3
JOIN_S = 300.0  # no leader for so much longer than nodes may take to gather: nobody is going to come
TRIES = 3  # to reach a candidate
Found = TypeVar("Found")


async def _off_loop(work: Callable[..., Found], *args: Any) -> Found:
    """On a thread: the filesystem may not answer for long, and this node's own seat must answer meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)


class Follower:
    """`run` returns this agent's exit code; `lead` is there while this node leads."""

    def __init__(self, identity: Identity, token: bytes, lease: ProcessLease) -> None:
        self._identity, self._token, self._lease = identity, token, lease
        self._node = NodeAgent(identity, token, lease)
        self._left: list[Channel] = []  # of leaders that may live: kept open, since its end would mean a dead agent
        self._succession: Election | None = None
        self._following = 0  # the term
        self._leader_rank = FIRST_LEADER
        self.leader: Leader | None = None
        self._leading: asyncio.Task[int | None] | None = None
        self.dismissed = False  # by a leader that ended the run: the Slurm job is its business, too

    def on_signal(self, signum: int, reason: str) -> None:
        if self.leader is not None:
            self.leader.stop(reason, signum)
        else:
            self._node.report_signal(signum)

    async def run(self) -> int:
        """Under one leader after another, to the end."""
        self._work = asyncio.create_task(self._follow_leads())
        await asyncio.wait([self._work])
        if self._leading is None:
            return self._work.result()
        code = await self._leading
        if code is None:  # others lead, or nobody does
            assert self.leader is not None
            await end_alone(self._identity, self.leader.parting)
            return INFRASTRUCTURE_FAILED
        await end_left_job(self._identity)
        return code

    async def _follow_leads(self) -> int:
        try:
            self._node.place = await find_place(os.environ, self._identity.run)
            if self._identity.rank == FIRST_LEADER:
                await self._campaign(0, first_membership(self._job().step_nodes, FIRST_LEADER))
            channel = await self._first_leader()
            while channel is not None:
                parting = await self._node.follow(channel)
                if parting is Parting.DISMISSED:
                    self.dismissed = True
                    return self._node.code
                if parting is Parting.REFUSED:
                    return INFRASTRUCTURE_FAILED
                channel = await self._next_leader(channel, parting)
            return self._code_without_a_word()
        finally:
            await self._node.clean()

    def _code_without_a_word(self) -> int:
        """Nobody has told us how the run ended: perhaps the file does."""
        recorded = read_record(self._identity.attempt.outcome).get("exit_code")
        if isinstance(recorded, int):
            return recorded
        return 0 if self._node.gone or self._succession is None else INFRASTRUCTURE_FAILED

    # -- the first ----------------------------------------------------------------------------------------------

    async def _first_leader(self) -> Channel | None:
        """Wait for the leader's published address, then connect to whichever of them answers; None if all is over."""
        identity, wait, patience = self._identity, FIRST_LOOK_S, self._job().gather_timeout
        began, stand_in = time.monotonic(), FirstLeaderElection(identity, LONGEST_LOOK_S)
        process = {"pid": os.getpid(), "python": sys.executable, "time": time.time()}
        write_json(identity.attempt.node_record(identity.rank), {**self._greeting(), **process})
        while True:
            claims = await _off_loop(identity.attempt.claims)
            for term in reversed(claims):  # the newest may be of one who was not elected
                try:
                    return await self._connect(term)
                except ChannelError as error:
                    logger.info("%s; trying again", error)
            late = time.monotonic() - began > patience and identity.rank <= FIRST_LEADER_CANDIDATES
            if wait >= LONGEST_LOOK_S and (await _off_loop(stand_in.look) or late) and not claims:
                await self._campaign(0, first_membership(self._job().step_nodes, identity.rank))
            if await _off_loop(has_outcome, identity.attempt):
                return None
            if time.monotonic() - began > patience + JOIN_S:
                await end_alone(identity, f"{identity.host} found no leader for {patience + JOIN_S:g} s")
                return None
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_LOOK_S)

    def _greeting(self) -> dict[str, Any]:
        identity = self._identity
        membership = {"charter": self._node.membership.as_record()} if self._node.membership else {}
        known = {"rank": identity.rank, "host": identity.host, "attempt": identity.attempt.number}
        return {**known, **asdict(self._node.place), **membership}

    async def _connect(self, term: int) -> Channel:
        record = read_record(self._identity.attempt.leader(term))
        self._following, self._leader_rank = term, record.get("rank", FIRST_LEADER)
        self._node.leads = self._leader_rank == self._identity.rank
        return await connect(record.get("addresses", []), record.get("port", 0), self._token, self._greeting())

    # -- the next -----------------------------------------------------------------------------------------------

    async def _next_leader(self, channel: Channel, parting: Parting) -> Channel | None:
        """Clean this node, wait until the lost leader is fenced, and join whoever leads then; None if nobody does."""
        self._part(channel, parting)
        membership = self._node.membership
        if self._leading is not None and self._node.leads:
            return None  # it was this node that led
        await self._node.clean()
        self._lease.clear()  # nothing runs here that it would have to end
        if membership is None or self._succession is None:
            if parting is Parting.RELEASED:
                return await self._first_leader()  # we came late, to a candidate that nobody elected
            if not self._node.gone:
                await end_alone(self._identity, f"the leader is gone: {self._node.loss_reason}")
            return None
        while not await _off_loop(has_outcome, self._identity.attempt):
            claims = await _off_loop(self._claims)
            decision = self._succession.decide(time.monotonic(), True, claims)
            if isinstance(decision, Join) and (found := await self._joined(decision.term)) is not None:
                return found
            if isinstance(decision, Claim):
                await self._campaign(decision.term, membership)
            elif isinstance(decision, Leave):
                await end_alone(
                    self._identity, f"the leader {self._node.loss_reason}; no majority of the nodes is left"
                )
                return None
            await asyncio.sleep(LOOK_S)
        return None

    def _part(self, channel: Channel, parting: Parting) -> None:
        """Keep what succession has to know of the leader that was lost."""
        now, membership = time.monotonic(), self._node.membership
        owed = self._node.answered if parting is Parting.LOST else None
        logger.warning("the leader of term %d %s", self._following, self._node.loss_reason)
        if channel.timed_out:
            self._left.append(channel)
        else:
            channel.close()
        if membership is not None and membership.term == self._following:
            self._succession = Election(self._identity.rank, membership, now, owed)
        elif self._succession is not None:
            self._succession.candidate_failed(self._following, self._leader_rank, now, owed)

    def _claims(self) -> dict[int, int]:
        attempt = self._identity.attempt
        records = {term: read_json(attempt.leader(term)) for term in attempt.claims()}
        return {term: record["rank"] for term, record in records.items() if record}

    async def _joined(self, term: int) -> Channel | None:
        assert self._succession is not None
        for _ in range(TRIES):
            try:
                return await self._connect(term)
            except ChannelError as error:
                logger.warning("%s", error)
                await asyncio.sleep(LOOK_S)
        self._succession.candidate_failed(term, self._leader_rank, time.monotonic(), None)
        return None

    # -- this node ----------------------------------------------------------------------------------------------

    async def _campaign(self, term: int, membership: Membership) -> None:
        """Claim the term; who joins decides."""
        candidate = Candidate(self._identity, self._job(), self._token, term, membership)
        if await candidate.claim():
            logger.info("this node is a candidate for term %d", term)
            if term == 0:
                self._take(candidate)
            else:
                self._standing = asyncio.create_task(self._elect(candidate, membership))

    async def _elect(self, candidate: Candidate, membership: Membership) -> None:
        """As this node's own agent joins like everybody else's, this goes on beside it."""
        hosts = host_names(self._identity.attempt)
        lost = hosts[membership.leader] if membership.leader < len(hosts) else f"rank-{membership.leader}"
        try:
            if await candidate.win(f"the agent of the leader {lost} {self._node.loss_reason}"):
                self._take(candidate)
        except BaseException:
            candidate.members.close_all()  # nobody may wait for a candidate that is none any more
            candidate.leave()
            raise

    def _take(self, candidate: Candidate) -> None:
        leader = Leader(self._identity, self._job(), candidate, self._lease)
        leader.watch(self._work)
        leader.start()
        self.leader, self._leading = leader, asyncio.create_task(leader.run())

    def _job(self) -> Job:
        return Job.load(self._identity.run)
