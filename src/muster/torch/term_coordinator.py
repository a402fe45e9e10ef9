"""The coordinator of one term of a job with failover: a candidate until it has won, then the coordinator with a lease.

`election/candidate.py` decides whether it has won, `election/leader_lease.py` until when it may coordinate and which
rounds may run. A term is claimed by one atomic link in the job's directory, as the agents of a run do it.

    end of the term                              what follows
    the job has ended                            the outcome is recorded in the directory, then sent to all nodes
    the lease has ended                          all connections are closed; the nodes may have elected another one
    this node leaves the job (it was signaled)   the other nodes are released: they elect another one without a fence
    it has not won (only a candidate)            the same
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict

from muster.agent.control.channel import HEARTBEAT_INTERVAL_S, Channel, listen
from muster.agent.control.codec import Message
from muster.agent.control.messages import Heartbeat, HeartbeatAnswer, MembershipUpdate, Retirement
from muster.agent.event_loop import running_now, sleep_by_monotonic_clock
from muster.agent.leader.leader_address import LeaderAddress
from muster.election.candidate import Candidacy, CandidacyEffect, Win
from muster.election.leader_lease import (
    AuthorizeCycle,
    Broadcast,
    LeaderLease,
    LeaseEffect,
    RequestAnswers,
    SendMembership,
    StepDown,
)
from muster.election.membership import Membership
from muster.process.running_time import RunningTime
from muster.rundir import AttemptPaths, create_exclusive
from muster.torch.coordinator import Coordinator, OpenStore
from muster.torch.elastic import ElasticJob
from muster.torch.elastic_types import Command, EndJob, FormRound, JobState, Refuse
from muster.torch.endpoint import is_loopback
from muster.torch.leased_job import LeasedJob
from muster.torch.messages import JoinRequest
from muster.torch.settings import RendezvousSettings

logger = logging.getLogger(__name__)

CANDIDACY_POLL_S = 0.5
RECORD_TIMEOUT_S = 5.0  # for the outcome: nodes must not wait for a filesystem that hangs


class TermCoordinator(Coordinator):
    """The coordinator of one term, in the process of one of the nodes."""

    def __init__(
        self,
        settings: RendezvousSettings,
        open_store: OpenStore,
        term: int,
        membership: Membership,
        reason: str,
    ) -> None:
        """`membership`: the newest that this node knows. `reason`: why the last coordinator was lost."""
        super().__init__(settings.config, settings.token, secrets.token_hex(8), open_store)
        assert settings.job_directory is not None and settings.node_index is not None
        self.term, self._settings, self._node_index = term, settings, settings.node_index
        self._directory = AttemptPaths(settings.job_directory)
        self._cycle = membership.cycle
        self._candidacy = Candidacy(term, settings.node_index, membership, reason)
        self._candidacy_ended: asyncio.Future[CandidacyEffect] = asyncio.get_running_loop().create_future()
        self._lease: LeaderLease | None = None  # once it has won
        self._requests: dict[int, JoinRequest] = {}  # of the connected nodes
        self._key_of: dict[int, int] = {}  # of the same nodes, by node index
        self._early: list[tuple[int, Message]] = []  # messages to the candidate, for the coordinator that it becomes
        self._waiting: list[Callable[[], None]] = []  # while the lease is lapsed, after a stop of this process
        self._running_time = RunningTime()
        self._peer_times: dict[int, float] = {}  # each node's own time in its last heartbeat
        self._home: int | None = None  # key of the node in this process, once it is a member
        self.end_of_term: str | None = None  # why it coordinates no longer, although the job has not ended

    @property
    def leads(self) -> bool:
        """Whether it has won its term."""
        return self._lease is not None

    # -- the candidate ------------------------------------------------------------------------------------------

    async def claim(self) -> bool:
        """Claim the term and return whether it succeeded; False if another node has claimed it."""
        loopback = is_loopback(self._settings.host)
        listener = listen(loopback_only=loopback)
        port = listener.getsockname()[1]
        await self._listen(listener)
        record = {"term": self.term, "rank": self._node_index, "host": self._settings.node, "cycle": self._cycle}
        record.update(addresses=LeaderAddress(loopback, None, os.environ).addresses, port=port)
        if not await asyncio.to_thread(create_exclusive, self._directory.leader(self.term), record):
            await self.close(0.0)
            return False
        self._background(self._beat())
        self._note(self._candidacy.claimed(running_now()))
        return True

    async def win(self) -> bool:
        """Wait until the term is won and return True; release the nodes and return False if it is not."""
        while not self._candidacy_ended.done():
            await asyncio.wait([self._candidacy_ended], timeout=CANDIDACY_POLL_S)
            self._note(self._candidacy.tick(running_now()))
        if isinstance(self._candidacy_ended.result(), Win):
            return True
        self.end_of_term = "it was not elected"
        await self._release_nodes(Retirement(None))
        return False

    def _note(self, effects: Iterable[CandidacyEffect]) -> None:
        for effect in effects:  # at most one in a candidacy
            self._candidacy_ended.set_result(effect)
            if isinstance(effect, Win):
                self._begin_term(effect)

    def _begin_term(self, win: Win) -> None:
        start, membership = win.term_start, win.membership
        if self.term:
            logger.info("this node coordinates the job from now on, from round %d: %s", start.cycle, start.reason)
        awaited = membership.roster - start.excluded if self.term else frozenset()
        self._job = ElasticJob(self._settings.config, running_now(), start, awaited)
        self._lease = LeaderLease(LeasedJob(self._job), membership)
        self._polling = self._background(self._poll_deadlines())
        for key, request in list(self._requests.items()):
            assert request.node_index is not None
            self._admit_member(key, request, self._candidacy.sent[request.node_index])
        early, self._early = self._early, []
        for key, message in early:
            if key in self._channels:
                self._handle(key, message)

    # -- nodes --------------------------------------------------------------------------------------------------

    def _start_heartbeats(self, channel: Channel) -> None:
        """Start nothing: `_beat` sends to all nodes."""

    async def _beat(self) -> None:
        """Send heartbeats with the time of sending, which nodes return: it dates the answer on this node's clock."""
        while self.end_of_term is None:
            self._beat_once()
            await sleep_by_monotonic_clock(HEARTBEAT_INTERVAL_S)

    def _beat_once(self) -> None:
        now = time.monotonic()
        for key, channel in self._channels.items():
            channel.send(Heartbeat(now, self._peer_times.get(key)))

    def _joined(self, key: int, request: JoinRequest, sent: float) -> None:
        if self._waits(lambda: self._joined(key, request, sent)):
            return
        node_index = request.node_index
        if node_index is None:
            self._execute([Refuse(key, f"{request.host} has no number, which a job with failover needs")])
            return
        if node_index in self._key_of:
            twin = self._requests[self._key_of[node_index]].host
            self._execute([Refuse(key, f"{request.host} cannot join as node {node_index}: {twin} is that node")])
            return
        self._requests[key], self._key_of[node_index] = request, key
        if self._lease is None:
            self._note(self._candidacy.joined(node_index, request.membership, sent))
        else:
            self._admit_member(key, request, sent)

    def _admit_member(self, key: int, request: JoinRequest, sent: float) -> None:
        assert self._lease is not None and request.node_index is not None
        if request.exit_code is not None:
            self._execute(self._job.arrived_ended(key, request.host, request.exit_code, request.reason))
            return
        self._admit(key, request)
        if key not in self._job.members:
            return
        if request.node_index == self._node_index:
            self._home = key
        version = request.membership.version if request.membership is not None else -1
        self._apply(self._lease.joined(request.node_index, sent, version, time.monotonic()))

    def _handle(self, key: int, message: Message) -> None:
        if isinstance(message, HeartbeatAnswer):
            self._on_answer(key, message)
        elif self._waits(lambda: self._handle(key, message)):
            return
        elif self._lease is None:
            self._early.append((key, message))
        elif self._may_act():
            super()._handle(key, message)
            self._check_home()

    def _on_answer(self, key: int, answer: HeartbeatAnswer) -> None:
        request = self._requests.get(key)
        if request is None or request.node_index is None:
            return
        self._peer_times[key] = answer.time
        if self._lease is None:
            self._candidacy.answered(request.node_index, answer.at)
        else:
            self._check_stop()
            self._apply(self._lease.answered(request.node_index, answer.at, answer.version, time.monotonic()))
            self._catch_up()

    def _lost(self, key: int, reason: str) -> None:
        if self._waits(lambda: self._lost(key, reason)):
            return
        request = self._requests.pop(key, None)
        self._peer_times.pop(key, None)
        if request is not None and request.node_index is not None:
            del self._key_of[request.node_index]
            if self._lease is None:
                self._candidacy.lost(request.node_index)
        if self._lease is not None and self._may_act():
            super()._lost(key, reason)
            self._check_home()

    # -- commands and effects -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._may_act():
            super()._tick()

    def _execute(self, commands: list[Command]) -> None:
        if self._may_act():
            super()._execute(commands)
            if self._lease is not None:
                self._apply(self._lease.run_changed(time.monotonic()))

    def _may_act(self) -> bool:
        """Return whether the term goes on. After a stall of this process the lease may have ended unnoticed."""
        if self.end_of_term is None and self._lease is not None:
            self._check_stop()
            self._apply(self._lease.tick(time.monotonic()))
        return self.end_of_term is None and not (self._lease is not None and self._lease.lapsed)

    def _check_stop(self) -> None:
        """Check whether this process was stopped, for example with the whole job. To be called regularly."""
        stopped = self._running_time.observe(time.monotonic())
        if stopped and self._lease is not None:
            self._apply(self._lease.resumed(stopped, time.monotonic()))

    def _waits(self, act: Callable[[], None]) -> bool:
        """Let an event wait while the lease is lapsed; return whether it does."""
        if self._may_act() or self._lease is None or not self._lease.lapsed:
            return False
        self._waiting.append(act)
        return True

    def _catch_up(self) -> None:
        """Handle what has waited, once this coordinator acts again."""
        while self._waiting and self._may_act():
            self._waiting.pop(0)()

    def _form(self, form: FormRound) -> None:
        super()._form(form)
        if self._lease is not None and self._job.state is JobState.FORMING:
            self._apply(self._lease.cycle_wanted(form.round, time.monotonic()))

    def _apply(self, effects: Iterable[LeaseEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Broadcast):
                self._send(tuple(self._channels), MembershipUpdate(effect.membership))
            elif isinstance(effect, SendMembership):
                self._send((self._key_of[effect.node_index],), MembershipUpdate(effect.membership))
            elif isinstance(effect, AuthorizeCycle):
                self._execute(self._job.authorize(effect.cycle, running_now()))
            elif isinstance(effect, RequestAnswers):
                self._beat_once()
            elif isinstance(effect, StepDown):
                self._step_down(effect.reason)
            # RenewLease needs nothing: `_may_act` sees the end. torchrun's workers have no supervisor to be told.

    def _end(self, end: EndJob) -> None:
        if self._may_act():
            self._background(self._record_and_end(end))

    async def _record_and_end(self, end: EndJob) -> None:
        """Record the outcome, then send it: a node that does not receive it finds it in the directory."""
        outcome = self._job.outcome
        assert outcome is not None
        record = {"exit_code": outcome.exit_code, **asdict(outcome)}
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            recording = asyncio.to_thread(create_exclusive, self._directory.outcome, record)
            await asyncio.wait_for(recording, RECORD_TIMEOUT_S)
        super()._end(end)

    # -- the end of the term ------------------------------------------------------------------------------------

    def _step_down(self, reason: str) -> None:
        """Stop without a message: the nodes may have left already."""
        logger.warning("this node coordinates the job no longer: %s", reason)
        self.end_of_term = reason
        self._disconnect()

    def _check_home(self) -> None:
        """Hand over to another node if the one of this process has left the job: its workers have ended."""
        left = self._home is not None and self._home not in self._job.members
        if left and self._job.outcome is None and self.end_of_term is None and self._lease is not None:
            reason = f"{self._settings.node} has left the job"
            logger.info("another node coordinates the job from now on: %s", reason)
            self._send(tuple(self._channels), MembershipUpdate(self._lease.membership.without_leader()))
            self.end_of_term = reason
            self._background(self._release_nodes(Retirement(reason)))

    async def _release_nodes(self, farewell: Message) -> None:
        self._send(tuple(self._channels), farewell)
        await asyncio.gather(*(channel.flush() for channel in self._channels.values()))
        self._disconnect()

    def _disconnect(self) -> None:
        self._server.close()
        self._stores.clear()
        for channel in self._channels.values():
            channel.close()
