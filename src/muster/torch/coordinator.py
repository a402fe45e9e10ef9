"""The coordinator of a torchrun job: the network side of elastic.py, with one TCP connection to each node.

The messages are in messages.py. The coordinator runs in the process of a node (session.py) or in a process outside the
job (`coordinate`). This module does not import torch: the caller passes a function that opens stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from muster.agent import event_loop
from muster.agent.control.channel import HEARTBEAT_TIMEOUT_S, Channel, ChannelReader, accept, serve
from muster.agent.control.codec import Message
from muster.agent.event_loop import running_now
from muster.lifecycle.end_reasons import listed
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.states import NodeState
from muster.torch.elastic import ElasticJob
from muster.torch.elastic_types import Command, ElasticConfig, EndJob, FormRound, JobState, Recall, Refuse, StartRound
from muster.torch.endpoint import bind_endpoint
from muster.torch.messages import (
    RENDEZVOUS_PROTOCOL,
    BackAtBarrier,
    JobOutcome,
    JoinRefused,
    JoinRequest,
    KeepAlive,
    LeaveJob,
    RoundForms,
    RoundReady,
    RoundRecalled,
    RoundRuns,
    TorchrunEnded,
)
from muster.torch.settings import RendezvousSettings

logger = logging.getLogger(__name__)

DEADLINE_POLL_S = 0.2
STALE_STORE_S = (
    45.0  # torchrun gives workers 30 s to end; a node not back by then waits in the old round's exit barrier
)
CLOSE_TIMEOUT_S = 10.0  # for all nodes to receive the outcome and disconnect, before the coordinator closes
OpenStore = Callable[[], tuple[int, object]]  # returns the port of a new store, and the object that keeps it open


def coordinate(settings: RendezvousSettings, open_store: OpenStore, announce: Callable[[int], None]) -> RunOutcome:
    """Coordinate one job from outside, to its end. `announce` gets the port. Raise OSError if it is in use."""
    return event_loop.run(_coordinate(settings, open_store, announce))


async def _coordinate(
    settings: RendezvousSettings, open_store: OpenStore, announce: Callable[[int], None]
) -> RunOutcome:
    listener = bind_endpoint(settings.host, settings.port)
    if listener is None:
        raise OSError(f"port {settings.port} is in use on this host, perhaps by another coordinator of this job")
    hosts = tuple(host for host in settings.config.hosts if host != settings.node)
    config = replace(settings.config, hosts=hosts)
    coordinator = Coordinator(config, settings.token, secrets.token_hex(8), open_store)
    await coordinator.start(listener)
    announce(listener.getsockname()[1])
    outcome = await coordinator.ended()
    await coordinator.close(CLOSE_TIMEOUT_S)
    return outcome


class Coordinator:
    """Serves one job, from the first node to the last."""

    def __init__(self, config: ElasticConfig, token: bytes, process_id: str, open_store: OpenStore) -> None:
        """`process_id`: a random id by which the node in this process is recognized."""
        self._token, self._process_id, self._open_store = token, process_id, open_store
        self._job = ElasticJob(config, running_now())
        self._keys = itertools.count(1)
        self._channels: dict[int, Channel] = {}
        self._stores: dict[int, object] = {}  # by round
        self._tasks: set[asyncio.Future[Any]] = set()
        self._disconnected = asyncio.Event()  # no node is connected

    async def start(self, listener: socket.socket) -> None:
        await self._listen(listener)
        self._polling = self._background(self._poll_deadlines())

    async def _listen(self, listener: socket.socket) -> None:
        self._server = await serve(self._accepted, listener)

    async def ended(self) -> RunOutcome:
        """Wait for the end of the job. Connected nodes may not have received the outcome yet."""
        await self._polling
        assert self._job.outcome is not None
        return self._job.outcome

    async def close(self, seconds: float) -> None:
        """Wait up to this long for all nodes to receive the outcome and disconnect; then stop listening."""
        if self._channels:
            self._disconnected.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._disconnected.wait(), seconds)
        self._server.close()
        for channel in self._channels.values():
            channel.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll_deadlines(self) -> None:
        while self._job.state is not JobState.ENDED:
            self._tick()
            await asyncio.sleep(DEADLINE_POLL_S)

    def _tick(self) -> None:
        self._execute(self._job.tick(running_now()))

    # -- nodes --------------------------------------------------------------------------------------------------

    def _accepted(self, reader: ChannelReader, writer: asyncio.StreamWriter) -> None:
        self._background(self._serve(reader, writer))

    async def _serve(self, reader: ChannelReader, writer: asyncio.StreamWriter) -> None:
        """Serve one node's connection, from handshake to end."""
        began = time.monotonic()
        accepted = await accept(reader, writer, self._token, RENDEZVOUS_PROTOCOL)
        if accepted is None:
            return
        channel, greeting = accepted
        assert isinstance(greeting, JoinRequest)
        key = next(self._keys)
        self._channels[key] = channel
        self._start_heartbeats(channel)
        loss = "violated the protocol"
        try:
            self._joined(key, greeting, began)
            while (message := await channel.receive()) is not None:
                self._handle(key, message)
            timed_out = f"timed out: no heartbeat for {HEARTBEAT_TIMEOUT_S:g} s"
            loss = timed_out if channel.timed_out else channel.loss_reason
        finally:
            channel.close()
            del self._channels[key]
            if not self._channels:
                self._disconnected.set()
            self._lost(key, loss)

    def _start_heartbeats(self, channel: Channel) -> None:
        self._background(channel.keep_alive(KeepAlive()))

    def _joined(self, key: int, request: JoinRequest, sent: float) -> None:
        """Handle a new connection. `sent`: when the message that the node answered by its request was sent."""
        self._admit(key, request)

    def _lost(self, key: int, reason: str) -> None:
        """Handle the end of a connection."""
        self._execute(self._job.lost(key, reason, running_now()))

    def _admit(self, key: int, request: JoinRequest) -> None:
        host, config = request.host, self._job.config
        ours, theirs = [(one.min_nodes, one.max_nodes, one.spares) for one in (config, request)]
        if theirs != ours:
            reason = "{} was started with --nnodes {}:{} and {} spares, this job with --nnodes {}:{} and {} spares"
            self._execute([Refuse(key, reason.format(host, *theirs, *ours))])
            return
        if request.process_id == self._process_id:
            self._job.coordinator = key
        self._execute(self._job.arrived(key, host, request.node_index, running_now()))

    def _handle(self, key: int, message: Message) -> None:
        now, job = running_now(), self._job
        if isinstance(message, BackAtBarrier):
            self._execute(job.returned(key, now))
        elif isinstance(message, RoundReady):
            self._execute(job.ready(key, message.round, now))
        elif isinstance(message, LeaveJob):
            self._execute(job.lost(key, message.reason, now))
        elif isinstance(message, TorchrunEnded) and message.exit_code == 0:
            self._execute(job.finished(key, now))
        elif isinstance(message, TorchrunEnded):
            self._execute(job.failed(key, message.exit_code, message.reason, now))
        if isinstance(message, (LeaveJob, TorchrunEnded)) and key not in job.members:
            self._release(key)

    def _release(self, key: int) -> None:
        """Send the outcome to a node that left the job, or close its connection if the job continues without it."""
        if self._job.outcome is not None:
            self._end(EndJob((key,)))
        else:
            self._channels[key].close()

    # -- commands -----------------------------------------------------------------------------------------------

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, FormRound):
                self._form(command)
            elif isinstance(command, StartRound):
                self._start_round(command)
            elif isinstance(command, Recall):
                logger.info("round %d is over: %s", command.round, command.reason)
                self._send(command.keys, RoundRecalled(command.round))
                asyncio.get_running_loop().call_later(STALE_STORE_S, self._stores.pop, command.round, None)
            elif isinstance(command, EndJob):
                self._end(command)
            else:
                logger.warning("refused: %s", command.reason)
                self._send((command.key,), JoinRefused(command.reason))
                self._channels[command.key].close()

    def _form(self, form: FormRound) -> None:
        """Open a new store for the round, so that no key of an older round can be mistaken for one of this round."""
        try:
            port, self._stores[form.round] = self._open_store()
        except (OSError, RuntimeError) as error:
            self._execute(self._job.abort(f"no store could be opened for round {form.round}: {error}"))
            return
        for key, rank in form.ranks.items():
            self._send((key,), RoundForms(form.round, rank, len(form.ranks), port))

    def _start_round(self, start: StartRound) -> None:
        """Start the round and close older stores; while the round formed, a node could still connect to one."""
        for older in [number for number in self._stores if number < start.round]:
            del self._stores[older]
        names = [self._job.members[key].host for key in start.keys]
        spares = [member.host for member in self._job.members.values() if member.state is NodeState.ARRIVED]
        spare = f"; spare: {listed(spares)}" if spares else ""
        logger.info("round %d runs on %s%s", start.round, listed(names), spare)
        self._send(start.keys, RoundRuns(start.round))

    def _end(self, end: EndJob) -> None:
        assert self._job.outcome is not None
        if self._job.outcome.exit_code:
            self._stores.clear()  # so that no node waits for failed ones in an exit barrier
        self._send(end.keys, JobOutcome(self._job.outcome))

    def _send(self, keys: tuple[int, ...], message: Message) -> None:
        line = RENDEZVOUS_PROTOCOL.server.encode(message)
        for key in keys:
            if key in self._channels:
                self._channels[key].send_line(line)

    def _background(self, work: Any) -> asyncio.Future[Any]:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
