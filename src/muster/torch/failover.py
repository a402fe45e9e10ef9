"""The session of one node in a job with failover: under one coordinator after another, or as the coordinator.

`election/follower.py` decides what a node does next, as for the agents of a run. This module carries its decisions out
with files in the job's directory, which all nodes share, and with connections:

    effect         here
    Poll           read the claims and the outcome in the job's directory
    Connect        connect to the address in the claim
    Follow         handle messages until the coordinator is lost, releases the node, or sends the outcome
    CleanUp        wait until torchrun has ended the workers of the round and is back at the barrier
    Campaign       claim the term (term_coordinator.py)
    EndLeaderless  leave the job: no coordinator was found
    Lead           leave the job: this node was the coordinator, and its term has ended
    ExitAgent      leave the job with its outcome

What the next coordinator needs comes from the nodes that join it: the number of the last round and the members (their
membership), and whether torchrun has ended on a node meanwhile. The restart budget is torchrun's: each node counts.
A round never outlives its coordinator, whose process also has the round's store.

Nothing here ends workers but torchrun, except on a node whose lease as the coordinator has ended: the other nodes may
start a round soon, so its workers are killed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from muster.agent.control.channel import HEARTBEAT_TIMEOUT_S, Channel, ChannelError, ProtocolMismatch, connect
from muster.agent.control.codec import Message
from muster.agent.control.messages import Heartbeat, HeartbeatAnswer, MembershipUpdate, Retirement
from muster.agent.event_loop import running_now
from muster.election.follower import (
    Campaign,
    CleanUp,
    Connect,
    EndLeaderless,
    Follow,
    FollowerEffect,
    FollowerElection,
    Lead,
    LostLeader,
    Poll,
    PollResult,
    StartupView,
)
from muster.election.membership import Membership
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.events import RunOutcome
from muster.rundir import AttemptPaths, is_listed, read_record
from muster.torch.coordinator import CLOSE_TIMEOUT_S, OpenStore
from muster.torch.messages import (
    RENDEZVOUS_PROTOCOL,
    BackAtBarrier,
    JobOutcome,
    JoinRefused,
    JoinRequest,
    LeaveJob,
    TorchrunEnded,
)
from muster.torch.session import (
    NO_ROUND,
    JobOver,
    NodeSession,
    Refused,
    Round,
    SessionError,
    Unreachable,
    coordinator_loss,
)
from muster.torch.settings import RendezvousSettings
from muster.torch.term_coordinator import TermCoordinator

logger = logging.getLogger(__name__)


class FailoverSession(NodeSession):
    """A NodeSession that survives the loss of the coordinator."""

    def __init__(self, settings: RendezvousSettings, open_store: OpenStore, kill_workers: Callable[[], None]) -> None:
        super().__init__(settings, open_store)
        assert settings.job_directory is not None and settings.node_index is not None
        self._directory, self._kill_workers = AttemptPaths(settings.job_directory), kill_workers
        config = settings.config
        self._election = FollowerElection(settings.node_index, config.expected, settings.node, config.gather_timeout)
        self._opened = False
        # Written under the lock:
        self._works = False  # torchrun may have workers
        self._left = False  # this node takes no further part
        self._ended: tuple[int, str] | None = None  # exit code and reason of torchrun on a node that took part
        # In the session's thread:
        self._idle = asyncio.Event()  # `_works` may have changed
        self._term: TermCoordinator | None = None  # the candidate or coordinator in this process
        self._membership: Membership | None = None  # the last one received
        self._connected = False  # to any coordinator, once
        self._coordinator_host = ""
        self._loss_reason = ""
        self._last_answer = 0.0

    # -- in torchrun's thread -----------------------------------------------------------------------------------

    def leave(self, code: int, reason: str) -> None:
        with self._changed:
            if self._works:
                self._ended = code, reason
            self._left = self._ended is None
            self._works = False
        self._report(TorchrunEnded(code, reason))
        self._close(None)

    def withdraw(self, reason: str) -> None:
        with self._changed:
            self._works, self._left = False, True
        self._report(LeaveJob(reason))
        self._close(CLOSE_TIMEOUT_S)

    def _arrive(self) -> None:
        with self._changed:
            self._works = False
        if self._opened:
            self._report(BackAtBarrier())
        else:
            self._opened = True
            self._thread.start()
            self._loop.call_soon_threadsafe(self._start)

    def _report(self, message: Message) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._idle.set)
            self._send(message)

    def _send(self, message: Message) -> None:
        self._loop.call_soon_threadsafe(self._send_now, message)

    def _is_over_for(self, round: Round) -> bool:
        """Wait for the loss of the coordinator: its store may be missed before its heartbeats are."""
        with self._changed:
            return self._changed.wait_for(lambda: self._forming is not round or self.is_over, 2 * HEARTBEAT_TIMEOUT_S)

    def _wait_until_running(self, round: Round) -> bool:
        with self._changed:
            self._works = super()._wait_until_running(round)
            return self._works

    @property
    def _is_open(self) -> bool:
        return self._opened

    # -- in the session's thread --------------------------------------------------------------------------------

    def _start(self) -> None:
        self._background(self._follow_coordinators())

    def _send_now(self, message: Message) -> None:
        """Send a message if there is a coordinator. The next JoinRequest tells another one all that it needs."""
        if self._channel is not None:
            self._channel.send(message)

    async def _follow_coordinators(self) -> None:
        """Execute one effect after another until the job has ended or this node leaves it."""
        try:
            await asyncio.to_thread(os.makedirs, self._directory.root, exist_ok=True)
            effect = self._election.started(running_now())
            while self._closed is None:
                effect = await self._execute(effect)
                if self._left and not isinstance(effect, Follow):
                    self._end(Unreachable("this node has left the job"))
        except OSError as error:
            self._end(Unreachable(f"failover_dir: {error}"))
        except Exception as error:
            self._end(Unreachable(f"the rendezvous has failed: {error!r}"))
            raise

    def _end(self, why: SessionError) -> None:
        with self._changed:
            self._closed = self._closed or why
            self._changed.notify_all()

    async def _execute(self, effect: FollowerEffect) -> FollowerEffect:
        """Carry out an effect and return the next one; the last ones end the session."""
        election = self._election
        if isinstance(effect, Poll):
            await asyncio.sleep(effect.after)
            return election.polled(await asyncio.to_thread(self._read_directory, effect.startup), running_now())
        if isinstance(effect, Connect):
            await asyncio.sleep(effect.after)
            return await self._connect(effect)
        if isinstance(effect, Follow):
            return await self._follow()
        if isinstance(effect, CleanUp):
            while self._works:
                self._idle.clear()
                await self._idle.wait()
            return election.cleaned(running_now())
        if isinstance(effect, Campaign):
            await self._campaign(effect)
            return election.claim_ended(running_now())
        if isinstance(effect, Lead):
            self._end_term()
        elif isinstance(effect, EndLeaderless):
            self._end(Unreachable(f"the job has no coordinator: {effect.reason}"))
        else:
            await self._exit()
        return effect

    def _read_directory(self, startup: bool) -> PollResult:
        began, directory = time.monotonic(), self._directory
        records = {term: read_record(directory.leader(term)) for term in directory.claims()}
        claims = {term: record["rank"] for term, record in records.items() if record}
        code = self._read_outcome().exit_code if is_listed(directory.outcome) else None
        view = StartupView({}, frozenset()) if startup else None  # torchrun's nodes write no startup heartbeats
        return PollResult(claims, code, time.monotonic() - began, view)

    def _read_outcome(self) -> RunOutcome:
        record = read_record(self._directory.outcome)
        try:
            return RunOutcome(**record)
        except TypeError:
            return RunOutcome("failed", INFRASTRUCTURE_FAILED, f"{self._directory.outcome} cannot be read")

    async def _exit(self) -> None:
        """End with the outcome in the directory, unless the coordinator has sent it."""
        if self._closed is not None:
            return
        outcome = await asyncio.to_thread(self._read_outcome)
        if not self._connected:  # it might be the outcome of another job
            other = "a new job needs another --rdzv-id or failover_dir"
            self._end(Refused(f"the job in {self._directory.root} has ended ({outcome.end_reason}); {other}"))
            return
        self.outcome = outcome
        self._end(JobOver(outcome))

    # -- a coordinator --------------------------------------------------------------------------------------------

    async def _connect(self, to: Connect) -> FollowerEffect:
        record = await asyncio.to_thread(read_record, self._directory.leader(to.term))
        self._coordinator_host = record.get("host", f"node {to.node_index}")
        addresses, port = record.get("addresses", []), record.get("port", 0)
        try:
            token = self._settings.token
            channel = await connect(addresses, port, token, RENDEZVOUS_PROTOCOL, self._request())
        except (ChannelError, ProtocolMismatch) as error:
            if isinstance(error, ProtocolMismatch):
                self._end(Refused(str(error)))
            logger.info("term %d: %s", to.term, error)
            return self._election.connect_failed(running_now())
        self._channel, self._connected = channel, True
        if self._left:  # meanwhile
            channel.close()
        return self._election.connected()

    def _request(self) -> JoinRequest:
        settings, config = self._settings, self._settings.config
        numbers = config.min_nodes, config.max_nodes, config.spares
        code, reason = self._ended or (None, "")
        return JoinRequest(settings.node, settings.node_index, "", *numbers, self._membership, code, reason)

    async def _follow(self) -> FollowerEffect:
        """Handle the messages of the coordinator until it is lost, releases this node, or the job has ended."""
        channel = self._channel
        assert channel is not None
        self._last_answer = running_now()
        while (message := await channel.receive()) is not None and not isinstance(message, Retirement):
            if isinstance(message, Heartbeat):
                self._answer(channel, message.at)
            elif isinstance(message, MembershipUpdate):
                self._membership = message.membership
                self._answer(channel, None)
            else:
                with self._changed:
                    self._on_message(message, channel)
                    self._changed.notify_all()
            if isinstance(message, (JobOutcome, JoinRefused)):
                break
        self._channel = None
        channel.close()
        if isinstance(message, JobOutcome):
            return self._election.dismissed(message.outcome.exit_code)
        if isinstance(message, JoinRefused):
            return self._election.refused()
        return self._lose(channel, message)

    def _answer(self, channel: Channel, at: float | None) -> None:
        self._last_answer = running_now()
        channel.send(HeartbeatAnswer(at, self._membership.version if self._membership else -1, time.monotonic()))

    def _lose(self, channel: Channel, retirement: Message | None) -> FollowerEffect:
        """Handle the loss of the coordinator, or its retirement: its round is over."""
        self._loss_reason = coordinator_loss(channel)
        if isinstance(retirement, Retirement) and retirement.reason is not None:
            self._loss_reason = f"has stepped down: {retirement.reason}"
        with self._changed:
            self._forming, self._running, self._recalled = NO_ROUND, 0, 0
            self._changed.notify_all()
        leads = self._term is not None and self._term.leads
        if not leads and not self._left:
            logger.warning("the coordinator %s %s", self._coordinator_host, self._loss_reason)
        last_answer = self._last_answer if retirement is None else None
        loss = LostLeader(self._membership, last_answer, self._loss_reason)
        return self._election.lost(loss, leads, running_now())

    def _store_host(self, channel: Channel) -> str:
        return channel.remote_address

    # -- this node as coordinator -----------------------------------------------------------------------------------

    async def _campaign(self, campaign: Campaign) -> None:
        """Claim the term. The claim to term 0 makes this node the coordinator; a later one needs a majority too."""
        reason = f"the coordinator {self._coordinator_host} {self._loss_reason}" if campaign.term else ""
        term = TermCoordinator(self._settings, self._open_store, campaign.term, campaign.membership, reason)
        if await term.claim():
            self._term = self._coordinator = term
            self._background(self._elect(term))

    async def _elect(self, term: TermCoordinator) -> None:
        """Wait for the result of the election; meanwhile this node joins its own candidate."""
        if not await term.win() and self._term is term:
            self._term = self._coordinator = None

    def _end_term(self) -> None:
        """Leave the job after this node's term: another node may coordinate it."""
        assert self._term is not None
        why = self._term.end_of_term or self._loss_reason
        if not self._left:
            self._kill_workers()
        self._end(Unreachable(f"this node coordinates the job no longer: {why}"))


def kill_children() -> None:
    """Kill the processes that this process has started: torchrun's workers. They lead their own sessions."""
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in listing.read_text().split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
