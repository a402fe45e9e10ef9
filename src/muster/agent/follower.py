"""This node under one leader after another: find the first, follow it, and when it is lost, join the next or lead.

`election/follower.py` decides; this module carries the decisions out, with files and connections.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from muster.agent.abandoned_job import cancel_abandoned_job
from muster.agent.check_process import CheckProcess
from muster.agent.control.channel import Channel, ChannelError, ProtocolMismatch, connect
from muster.agent.control.messages import CONTROL_PROTOCOL, Greeting
from muster.agent.event_loop import running_now
from muster.agent.first_leader import StartupPoll
from muster.agent.guardian import Guardian
from muster.agent.job import Identity, Job
from muster.agent.leader.candidate import Candidate
from muster.agent.leader.inbox import Inbox, SignalPassedOn, StopSignalled
from muster.agent.leader.leader import Leader
from muster.agent.leaderless import end_leaderless_run, has_outcome, record_failure
from muster.agent.node import FollowResult, NodeAgent
from muster.agent.node_log import limit_node_log
from muster.agent.run_directory import RunDirectoryError, retried
from muster.agent.topology_probe import probe_location
from muster.election.candidate import ELECTION_TIMEOUT_S
from muster.election.follower import (
    Campaign,
    CleanUp,
    Connect,
    EndLeaderless,
    ExitAgent,
    Follow,
    FollowerEffect,
    FollowerElection,
    Lead,
    LostLeader,
    Poll,
    PollResult,
)
from muster.election.leader_silence import STARTUP_SILENCE_S
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FIRST_LEADER
from muster.process.lease import ProcessLease
from muster.rundir import AttemptPaths, read_record, write_json
from muster.rundir.hosts import host_name
from muster.rundir.listing import AttemptListing, read_listing
from muster.rundir.poll_pace import slowed

logger = logging.getLogger(__name__)


class Follower:
    """Follows the leaders of the run, or leads it.

    Files are accessed on threads: the filesystem may hang, and a leader in this process must answer meanwhile.
    """

    def __init__(
        self,
        identity: Identity,
        token: bytes,
        lease: ProcessLease,
        guardian: Guardian | None = None,
        checks: CheckProcess | None = None,
    ) -> None:
        self._identity, self._token, self._lease = identity, token, lease
        self._guardian = guardian or Guardian(None)
        self._node = NodeAgent(identity, token, lease, checks)
        self._job: Job
        self._election: FollowerElection
        self._startup_poll = StartupPoll(identity)
        self._claims: dict[int, dict[str, Any]] = {}  # the records that could be read, by term
        self._poll_seconds = 0.0  # duration of the last poll of the run directory
        self._channel: Channel  # to the leader
        self._leader_host = ""
        self._silent_channels: list[Channel] = []  # of leaders that may live: closing one would report a dead agent
        self._inbox: Inbox | None = None  # of this node's leader, as soon as it is certain that this node leads
        self._leader: Leader | None = None
        self._leading: asyncio.Task[int | None] | None = None
        self.dismissed = False  # by a leader that ended the run and also releases the Slurm job

    def on_signal(self, signum: int, reason: str) -> None:
        """Handle a signal that ends the job."""
        if self._inbox is not None:
            self._inbox.post(StopSignalled(reason, signum))
        else:
            self._node.report_signal(signum)

    def pass_on_signal(self, signum: int) -> None:
        """Pass a signal on to the driver if this node leads; the other agents ignore it."""
        if self._inbox is not None:
            self._inbox.post(SignalPassedOn(signum))

    async def run(self) -> int:
        """Follow one leader after another until the run ends; return this agent's exit code."""
        self._work = asyncio.create_task(self._follow_leaders())
        await asyncio.wait([self._work])
        if self._leading is None:
            return self._work.result()
        code = await self._leading
        if code is None:  # this node no longer leads; another one may
            assert self._leader is not None
            await end_leaderless_run(self._identity, self._leader.step_down_reason)
            return INFRASTRUCTURE_FAILED
        await cancel_abandoned_job(self._identity)
        return code

    async def _follow_leaders(self) -> int:
        """Execute one effect after another. The result does not count if this node leads."""
        identity = self._identity
        try:
            self._job = await retried(identity.run.job, Job.load, identity.run)
            self._node.checks.begin(self._job)
            log = identity.attempt.node_log(identity.node_index)
            await asyncio.to_thread(limit_node_log, log, self._job.log_limit)
            self._node.location = await probe_location(os.environ, self._job.segment)
            process = {"pid": os.getpid(), "python": sys.executable, "time": time.time()}
            known = {"rank": identity.node_index, "host": identity.host, "attempt": identity.attempt.number}
            record = {**known, **asdict(self._node.location), **process}
            path = identity.attempt.node_record(identity.node_index)
            await retried(path, write_json, path, record)
            self._node.holds_lease = bool(self._job.max_restarts)
            nodes, gather_timeout = self._job.step_nodes, self._job.gather_timeout
            self._election = FollowerElection(
                identity.node_index, nodes, identity.host, gather_timeout, self._node.history
            )
            effect = self._election.started(running_now())
            while not isinstance(effect, (ExitAgent, Lead)):
                effect = await self._execute(effect)
            return effect.code if isinstance(effect, ExitAgent) else INFRASTRUCTURE_FAILED
        except ProtocolMismatch as error:
            logger.error("%s", error)
            return INFRASTRUCTURE_FAILED
        except RunDirectoryError as error:
            logger.error("%s", error)
            if identity.node_index == FIRST_LEADER:  # the others can do without this node
                await record_failure(identity.attempt, f"{identity.host}: {error}")
            return INFRASTRUCTURE_FAILED
        finally:
            await self._node.clean()

    async def _execute(self, effect: Poll | Connect | Follow | CleanUp | Campaign | EndLeaderless) -> FollowerEffect:
        """Execute the effect and return the one that follows."""
        election = self._election
        if isinstance(effect, Poll):
            await asyncio.sleep(slowed(effect.after, self._poll_seconds) if effect.after else 0.0)
            poll = await asyncio.to_thread(self._read_run_directory, effect.startup)
            self._poll_seconds = poll.seconds
            return election.polled(poll, running_now())
        if isinstance(effect, Connect):
            await asyncio.sleep(effect.after)
            return await self._connect(effect)
        if isinstance(effect, Follow):
            return await self._follow()
        if isinstance(effect, CleanUp):
            await self._node.clean()
            self._lease.clear()  # no process is left that it would have to end
            return election.cleaned(running_now())
        if isinstance(effect, Campaign):
            await self._campaign(effect)
            return election.claim_ended(running_now())
        await end_leaderless_run(self._identity, effect.reason)
        return election.leaderless_ended()

    def _read_run_directory(self, startup: bool) -> PollResult:
        """Poll with one listing: thousands of nodes do so at once when a leader is lost."""
        began, attempt = time.monotonic(), self._identity.attempt
        view = self._startup_poll.read() if startup else None
        listing = read_listing(attempt) or AttemptListing(frozenset())
        for term in listing.claims:
            record = read_record(attempt.leader(term)) if term not in self._claims else {}
            if "rank" in record:  # complete: it never changes again
                self._claims[term] = record
        claims = {term: self._claims[term]["rank"] for term in listing.claims if term in self._claims}
        outcome = recorded_exit_code(attempt) if listing.has_outcome else None
        seconds, gone = time.monotonic() - began, frozenset(listing.leaders_gone)
        return PollResult(claims, outcome, seconds, view, gone)

    # -- a leader -------------------------------------------------------------------------------------------------

    async def _connect(self, to: Connect) -> FollowerEffect:
        record = self._claims[to.term]
        self._node.leads = to.node_index == self._identity.node_index
        self._leader_host = record.get("host", f"rank-{to.node_index}")
        addresses, port = record.get("addresses", []), record.get("port", 0)
        try:
            self._channel = await connect(addresses, port, self._token, CONTROL_PROTOCOL, self._greeting())
        except ChannelError as error:
            logger.info("term %d: %s", to.term, error)
            return self._election.connect_failed(running_now())
        return self._election.connected()

    def _greeting(self) -> Greeting:
        identity, node = self._identity, self._node
        known = (node.location, node.membership, node.checks.begun)
        return Greeting(identity.node_index, identity.host, identity.attempt.number, *known)

    async def _follow(self) -> FollowerEffect:
        node, channel = self._node, self._channel
        result = await node.follow(channel)
        if result is FollowResult.DISMISSED:
            self.dismissed = True
            return self._election.dismissed(node.code)
        if result is FollowResult.REFUSED:
            return self._election.refused()
        logger.warning("the leader of term %d %s", self._election.term, node.loss_reason)
        if channel.timed_out:
            self._silent_channels.append(channel)
        else:
            channel.close()
        last_answer = node.answered_at if result is FollowResult.LOST else None
        how = f"the leader {self._leader_host} {node.loss_reason}"
        loss = LostLeader(node.membership, last_answer, how, node.stopped)
        return self._election.lost(loss, self._leading is not None, running_now())

    # -- this node as leader --------------------------------------------------------------------------------------

    async def _campaign(self, campaign: Campaign) -> None:
        """Claim the term. The claim to term 0 makes this node the leader; a later one needs a majority as well."""
        term, membership, attempt = campaign.term, campaign.membership, self._identity.attempt
        for node_index in sorted(campaign.silent):
            host = await asyncio.to_thread(host_name, attempt, node_index)
            logger.warning("%s has sent no heartbeat for %g s and has not become leader", host, STARTUP_SILENCE_S)
        lost = await asyncio.to_thread(host_name, attempt, membership.leader)
        reason = f"the agent of the leader {lost} {self._node.loss_reason}"
        candidate = Candidate(self._identity, self._job, self._token, campaign, reason)
        self._guardian.note_claim(term)
        try:
            claimed = await candidate.claim()
        except RunDirectoryError as error:
            if term == 0 and self._identity.node_index == FIRST_LEADER:
                raise
            logger.warning("term %d could not be claimed: %s", term, error)
            return
        if claimed:
            logger.info("this node is a candidate for term %d", term)
            if term == 0:
                self._inbox = candidate.inbox
            self._campaigning = asyncio.create_task(self._elect(candidate))
            if term == 0:
                await self._campaigning

    async def _elect(self, candidate: Candidate) -> None:
        """Lead if the candidate wins. Runs as a task, since this node's own agent has to join as well."""
        try:
            if await candidate.win():
                await self._lead(candidate)
        except BaseException:
            candidate.abandon()  # agents must not wait for a candidate that has failed
            raise

    async def _lead(self, candidate: Candidate) -> None:
        creating = Leader.create(self._identity, self._job, candidate, self._lease)
        try:  # the members of a later term can elect another leader while the filesystem of this node hangs
            leader = await asyncio.wait_for(creating, ELECTION_TIMEOUT_S if candidate.term else None)
        except asyncio.TimeoutError:
            await candidate.retire()
            return
        candidate.inbox.watch(self._work)
        self._leader, self._inbox = leader, candidate.inbox
        self._leading = asyncio.create_task(leader.run())


def recorded_exit_code(attempt: AttemptPaths) -> int | None:
    """Return the exit code of the run's outcome; None if no outcome is recorded, or it cannot be read now."""
    if not has_outcome(attempt):
        return None
    try:
        with open(attempt.outcome, encoding="utf-8", errors="replace") as file:
            code = json.load(file)["exit_code"]
    except OSError:
        return None
    except (ValueError, LookupError, TypeError):
        return INFRASTRUCTURE_FAILED
    return code if isinstance(code, int) else INFRASTRUCTURE_FAILED
