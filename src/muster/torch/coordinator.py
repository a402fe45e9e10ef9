"""The coordinator: the edge around the protocol of a torchrun job. One TCP connection to each node, and no polling.

    node -> coordinator   (greeting) host, number, plan       at the barrier for the first time
                          back                                at the barrier again
                          ready   round                       has its rank, reaches the round's store
                          ended   code, reason                torchrun is over on the node
                          leave   reason                      the node goes, the job may go on
    coordinator -> node   refused why
                          form    round, rank, size, port     the round has closed; its store is at the endpoint's host
                          go      round                       all of them are ready
                          again   round                       end the workers and come back
                          outcome ...                         how the job ended; the node closes the connection

Nothing here imports torch: the stores come from a function that is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from muster.agent.control.channel import HEARTBEAT_TIMEOUT_S, MESSAGE_MAX_BYTES, Channel, accept
from muster.lifecycle.end_reasons import listed
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.states import NodeState
from muster.torch.elastic import ElasticJob
from muster.torch.elastic_types import CallBack, Command, ElasticPlan, End, Form, Go, JobState, Refuse

logger = logging.getLogger(__name__)

LOOK_S = 0.2  # how often deadlines are looked at
STALE_S = 45.0  # torchrun gives workers 30 s to end; who is not back by then waits in the old round's exit barrier
OpenStore = Callable[[], tuple[int, object]]  # a new store: its port, and what keeps it open for as long as it is kept


class Coordinator:
    """Serves one job, from the first node to the last."""

    def __init__(self, plan: ElasticPlan, token: bytes, home: str, open_store: OpenStore) -> None:
        self._token, self._home, self._open_store = token, home, open_store
        self._job = ElasticJob(plan, time.monotonic())
        self._keys = itertools.count(1)
        self._channels: dict[int, Channel] = {}
        self._stores: dict[int, object] = {}  # by round
        self._tasks: set[asyncio.Future[Any]] = set()
        self._deserted = asyncio.Event()  # nobody is connected

    async def start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accepted, sock=listener, limit=MESSAGE_MAX_BYTES)
        self._looking = self._background(self._look())

    async def ended(self) -> RunOutcome:
        """Wait for the job's end; whoever is connected is told of it, and may not have heard it yet."""
        await self._looking
        assert self._job.outcome is not None
        return self._job.outcome

    async def close(self, seconds: float) -> None:
        """Let everybody hear the outcome and go, within bounds; then stop listening."""
        if self._channels:
            self._deserted.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._deserted.wait(), seconds)
        self._server.close()
        for channel in self._channels.values():
            channel.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        while self._job.state is not JobState.ENDED:
            self._carry_out(self._job.tick(time.monotonic()))
            await asyncio.sleep(LOOK_S)

    # -- nodes --------------------------------------------------------------------------------------------------

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._background(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One node's connection, from handshake to end."""
        accepted = await accept(reader, writer, self._token)
        if accepted is None:
            return
        channel, greeting = accepted
        key = next(self._keys)
        self._channels[key] = channel
        self._background(channel.beat())
        how = "broke the protocol"
        try:
            self._admit(key, greeting)
            while (message := await channel.receive()) is not None:
                self._hear(key, message)
            silent = f"fell silent: no heartbeat for {HEARTBEAT_TIMEOUT_S:g} s"
            how = silent if channel.timed_out else "is gone: its connection ended"
        finally:
            channel.close()
            del self._channels[key]
            if not self._channels:
                self._deserted.set()
            self._carry_out(self._job.lost(key, how, time.monotonic()))

    def _admit(self, key: int, greeting: dict[str, Any]) -> None:
        host, number, plan = str(greeting["host"]), greeting["number"], self._job.plan
        ours = [plan.least, plan.most, plan.spares]
        if greeting["plan"] != ours:
            told = "{} was started with --nnodes {}:{} and {} spares, this job with --nnodes {}:{} and {} spares"
            self._carry_out([Refuse(key, told.format(host, *greeting["plan"], *ours))])
            return
        if greeting.get("home") == self._home:
            self._job.leader = key
        self._carry_out(self._job.arrived(key, host, number, time.monotonic()))

    def _hear(self, key: int, message: dict[str, Any]) -> None:
        kind, now, job = message["type"], time.monotonic(), self._job
        if kind == "back":
            self._carry_out(job.back(key, now))
        elif kind == "ready":
            self._carry_out(job.ready(key, message["round"], now))
        elif kind == "leave":
            self._carry_out(job.lost(key, message["reason"], now))
        elif kind == "ended" and message["code"] == 0:
            self._carry_out(job.finished(key, now))
        elif kind == "ended":
            self._carry_out(job.failed(key, message["code"], message["reason"], now))
        if kind in ("leave", "ended") and key not in job.members:
            self._dismiss(key)

    def _dismiss(self, key: int) -> None:
        """A node that is no part of the job any more: it hears how the job ended, or that it goes on without it."""
        if self._job.outcome is not None:
            self._end(End((key,)))
        else:
            self._channels[key].close()

    # -- commands -----------------------------------------------------------------------------------------------

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Form):
                self._form(command)
            elif isinstance(command, Go):
                self._go(command)
            elif isinstance(command, CallBack):
                logger.info("round %d is over: %s", command.round, command.why)
                self._tell(command.keys, "again", round=command.round)
                asyncio.get_running_loop().call_later(STALE_S, self._stores.pop, command.round, None)
            elif isinstance(command, End):
                self._end(command)
            else:
                logger.warning("refused: %s", command.why)
                self._tell((command.key,), "refused", why=command.why)
                self._channels[command.key].close()

    def _form(self, form: Form) -> None:
        """Every round has a store of its own: nothing of an older one can be mistaken for this one's."""
        try:
            port, self._stores[form.round] = self._open_store()
        except (OSError, RuntimeError) as error:
            self._carry_out(self._job.close_all(f"no store could be opened for round {form.round}: {error}"))
            return
        for key, rank in form.ranks.items():
            self._tell((key,), "form", round=form.round, rank=rank, size=len(form.ranks), port=port)

    def _go(self, go: Go) -> None:
        """Older stores may go only now: while a round forms, somebody may still be on the way to the one before."""
        for older in [number for number in self._stores if number < go.round]:
            del self._stores[older]
        names = [self._job.members[key].host for key in go.keys]
        spares = [member.host for member in self._job.members.values() if member.state is NodeState.ARRIVED]
        spare = f"; spare: {listed(spares)}" if spares else ""
        logger.info("round %d runs on %s%s", go.round, listed(names), spare)
        self._tell(go.keys, "go", round=go.round)

    def _end(self, end: End) -> None:
        assert self._job.outcome is not None
        if self._job.outcome.exit_code:
            self._stores.clear()  # so that nobody waits in an exit barrier for those who failed
        self._tell(end.keys, "outcome", **asdict(self._job.outcome))

    def _tell(self, keys: tuple[int, ...], kind: str, **fields: Any) -> None:
        for key in keys:
            if key in self._channels:
                self._channels[key].send(kind, **fields)

    def _background(self, work: Any) -> asyncio.Future[Any]:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
