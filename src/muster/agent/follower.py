"""This node under one leader after another: find the first, follow it, and when it is lost, join the next or lead.

`election/campaign.py` decides; this module carries the decisions out, with files and connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from muster.agent.abandoned_job import cancel_abandoned_job
from muster.agent.control.channel import Channel, ChannelError, connect
from muster.agent.first_leader import FirstLeaderElection
from muster.agent.job import Identity, Job
from muster.agent.leader.candidate import Candidate
from muster.agent.leader.leader import Leader
from muster.agent.leaderless import end_leaderless_run, has_outcome
from muster.agent.node import FollowResult, NodeAgent
from muster.agent.topology_probe import probe_location
from muster.election.campaign import Claim, Election, Join, Leave
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES
from muster.election.membership import Membership, first_membership
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FIRST_LEADER
from muster.process.lease import ProcessLease
from muster.rundir import read_json, read_record, write_json
from muster.rundir.hosts import host_name

logger = logging.getLogger(__name__)

FIRST_LEADER_MIN_POLL_S, FIRST_LEADER_MAX_POLL_S = 0.05, 1.0
ELECTION_POLL_S = 0.3
FIRST_LEADER_TIMEOUT_S = 300.0  # beyond the gather timeout: then no leader will come
CONNECT_TRIES = 3  # to reach a candidate


class Follower:
    """Follows the leaders of the run, or leads it. `leader` is set while this node leads.

    Files are read on threads: the filesystem may hang, and a leader in this process must answer meanwhile.
    """

    def __init__(self, identity: Identity, token: bytes, lease: ProcessLease) -> None:
        self._identity, self._token, self._lease = identity, token, lease
        self._node = NodeAgent(identity, token, lease)
        self._silent_channels: list[Channel] = []  # of leaders that may live: closing one would report a dead agent
        self._election: Election | None = None
        self._following = 0  # the term
        self._leader_rank = FIRST_LEADER
        self.leader: Leader | None = None
        self._leading: asyncio.Task[int | None] | None = None
        self.dismissed = False  # by a leader that ended the run and also releases the Slurm job

    def on_signal(self, signum: int, reason: str) -> None:
        if self.leader is not None:
            self.leader.stop(reason, signum)
        else:
            self._node.report_signal(signum)

    async def run(self) -> int:
        """Follow one leader after another until the run ends; return this agent's exit code."""
        self._work = asyncio.create_task(self._follow_leaders())
        await asyncio.wait([self._work])
        if self._leading is None:
            return self._work.result()
        code = await self._leading
        if code is None:  # this node no longer leads; another one may
            assert self.leader is not None
            await end_leaderless_run(self._identity, self.leader.step_down_reason)
            return INFRASTRUCTURE_FAILED
        await cancel_abandoned_job(self._identity)
        return code

    async def _follow_leaders(self) -> int:
        try:
            self._node.location = await probe_location(os.environ, self._identity.run)
            if self._identity.rank == FIRST_LEADER:
                await self._campaign(0, first_membership(self._job().step_nodes, FIRST_LEADER))
            channel = await self._first_leader()
            while channel is not None:
                result = await self._node.follow(channel)
                if result is FollowResult.DISMISSED:
                    self.dismissed = True
                    return self._node.code
                if result is FollowResult.REFUSED:
                    return INFRASTRUCTURE_FAILED
                channel = await self._next_leader(channel, result)
            return self._recorded_code()
        finally:
            await self._node.clean()

    def _recorded_code(self) -> int:
        """Return the exit code of the recorded outcome, for a node that got no message about the run's end."""
        recorded = read_record(self._identity.attempt.outcome).get("exit_code")
        if isinstance(recorded, int):
            return recorded
        return 0 if self._node.stopped or self._election is None else INFRASTRUCTURE_FAILED

    # -- the first leader -----------------------------------------------------------------------------------------

    async def _first_leader(self) -> Channel | None:
        """Wait for a leader's published addresses and connect to it; None if the run is over."""
        identity, wait, gather_timeout = self._identity, FIRST_LEADER_MIN_POLL_S, self._job().gather_timeout
        began, election = time.monotonic(), FirstLeaderElection(identity, FIRST_LEADER_MAX_POLL_S)
        process = {"pid": os.getpid(), "python": sys.executable, "time": time.time()}
        write_json(identity.attempt.node_record(identity.rank), {**self._greeting(), **process})
        while True:
            claims = await asyncio.to_thread(identity.attempt.claims)
            for term in reversed(claims):  # the newest may belong to a candidate that was not elected
                try:
                    return await self._connect(term)
                except ChannelError as error:
                    logger.info("%s; trying again", error)
            late = time.monotonic() - began > gather_timeout and identity.rank <= FIRST_LEADER_CANDIDATES
            if wait >= FIRST_LEADER_MAX_POLL_S and (await asyncio.to_thread(election.poll) or late) and not claims:
                await self._campaign(0, first_membership(self._job().step_nodes, identity.rank))
            if await asyncio.to_thread(has_outcome, identity.attempt):
                return None
            if time.monotonic() - began > (timeout := gather_timeout + FIRST_LEADER_TIMEOUT_S):
                await end_leaderless_run(identity, f"{identity.host} found no leader for {timeout:g} s")
                return None
            await asyncio.sleep(wait)
            wait = min(wait * 2, FIRST_LEADER_MAX_POLL_S)

    def _greeting(self) -> dict[str, Any]:
        identity = self._identity
        membership = {"charter": self._node.membership.as_record()} if self._node.membership else {}
        known = {"rank": identity.rank, "host": identity.host, "attempt": identity.attempt.number}
        return {**known, **asdict(self._node.location), **membership}

    async def _connect(self, term: int) -> Channel:
        record = read_record(self._identity.attempt.leader(term))
        self._following, self._leader_rank = term, record.get("rank", FIRST_LEADER)
        self._node.leads = self._leader_rank == self._identity.rank
        return await connect(record.get("addresses", []), record.get("port", 0), self._token, self._greeting())

    # -- the next leader ------------------------------------------------------------------------------------------

    async def _next_leader(self, channel: Channel, result: FollowResult) -> Channel | None:
        """Clean this node, wait until the lost leader is fenced, and connect to the next one; None if there is none."""
        self._leave(channel, result)
        membership = self._node.membership
        if self._leading is not None and self._node.leads:
            return None  # this node was the leader
        await self._node.clean()
        self._lease.clear()  # no process is left that it would have to end
        if membership is None or self._election is None:
            if result is FollowResult.RELEASED:
                return await self._first_leader()  # a late node that joined a candidate which was not elected
            if not self._node.stopped:
                await end_leaderless_run(self._identity, f"the leader is gone: {self._node.loss_reason}")
            return None
        while not await asyncio.to_thread(has_outcome, self._identity.attempt):
            claims = await asyncio.to_thread(self._claims)
            decision = self._election.decide(time.monotonic(), True, claims)
            if isinstance(decision, Join) and (joined := await self._join(decision.term)) is not None:
                return joined
            if isinstance(decision, Claim):
                await self._campaign(decision.term, membership)
            elif isinstance(decision, Leave):
                reason = f"the leader {self._node.loss_reason}; no majority of the nodes is left"
                await end_leaderless_run(self._identity, reason)
                return None
            await asyncio.sleep(ELECTION_POLL_S)
        return None

    def _leave(self, channel: Channel, result: FollowResult) -> None:
        """Close the channel of a leader that is lost or has released this node, and prepare the next election."""
        now, membership = time.monotonic(), self._node.membership
        last_answer = self._node.last_answer if result is FollowResult.LOST else None
        logger.warning("the leader of term %d %s", self._following, self._node.loss_reason)
        if channel.timed_out:
            self._silent_channels.append(channel)
        else:
            channel.close()
        if membership is not None and membership.term == self._following:
            self._election = Election(self._identity.rank, membership, now, last_answer)
        elif self._election is not None:
            self._election.candidate_failed(self._following, self._leader_rank, now, last_answer)

    def _claims(self) -> dict[int, int]:
        attempt = self._identity.attempt
        records = {term: read_json(attempt.leader(term)) for term in attempt.claims()}
        return {term: record["rank"] for term, record in records.items() if record}

    async def _join(self, term: int) -> Channel | None:
        assert self._election is not None
        for _ in range(CONNECT_TRIES):
            try:
                return await self._connect(term)
            except ChannelError as error:
                logger.warning("%s", error)
                await asyncio.sleep(ELECTION_POLL_S)
        self._election.candidate_failed(term, self._leader_rank, time.monotonic(), None)
        return None

    # -- this node as leader --------------------------------------------------------------------------------------

    async def _campaign(self, term: int, membership: Membership) -> None:
        """Claim the term. The claim to term 0 makes this node the leader; a later one needs a majority as well."""
        candidate = Candidate(self._identity, self._job(), self._token, term, membership)
        if await candidate.claim():
            logger.info("this node is a candidate for term %d", term)
            if term == 0:
                self._lead(candidate)
            else:
                self._campaigning = asyncio.create_task(self._elect(candidate, membership))

    async def _elect(self, candidate: Candidate, membership: Membership) -> None:
        """Lead if a majority joins. Runs as a task, since this node's own agent has to join as well."""
        lost = host_name(self._identity.attempt, membership.leader)
        try:
            if await candidate.win(f"the agent of the leader {lost} {self._node.loss_reason}"):
                self._lead(candidate)
        except BaseException:
            candidate.connections.close_all()  # agents must not wait for a candidate that has failed
            candidate.cancel_tasks()
            raise

    def _lead(self, candidate: Candidate) -> None:
        leader = Leader(self._identity, self._job(), candidate, self._lease)
        leader.watch(self._work)
        leader.start()
        self.leader, self._leading = leader, asyncio.create_task(leader.run())

    def _job(self) -> Job:
        return Job.load(self._identity.run)
