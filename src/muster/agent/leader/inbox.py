"""The inbox of a leader: connections, timers, files and processes post events here, and one loop handles them.

    event               posted by                               because
    AgentJoined         control/connections.py                  an agent connected and proved the run's token
    AgentRejected       control/connections.py                  an agent has the node index of a connected one
    HeartbeatAnswered   control/connections.py                  an agent answered a heartbeat or a membership
    AgentMessage        control/connections.py                  an agent sent any other message
    AgentLost           control/connections.py                  a connection ended, or an agent fell silent
    RunDirectoryPolled  leader.py, from rundir_watch.py         a stop request, ended tasks or silent nodes were found
    StopSignalled       the agent's signal handler              Slurm ends the job
    SignalPassedOn      the agent's signal handler              Slurm sent a signal that is meant for the driver
    MachineEvent        driver_supervisor.py, services.py       the state machine must know of something
    Failure             driver_supervisor.py                    the same; it is the run's error if it ends the run
    TimePassed          the inbox's clock                       deadlines and the lease must be checked
    WorkFailed          the inbox, for its tasks                a task raised an exception: the leader has a defect
    TermEnded           leader.py                               the outcome is published, or the leader has yielded

A candidate handles the events of its connections. It puts those that the leader needs back for the leader it becomes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

from muster.agent.control.connections import AgentJoined, AgentLost, AgentMessage, AgentRejected, HeartbeatAnswered
from muster.agent.event_loop import stopped_seconds
from muster.lifecycle.events import Event
from muster.rundir.launcher_log import EarlyEnd

CLOCK_INTERVAL_S = 0.5
SLICE_S = 0.02  # after which the handling of events lets connections and timers have their turn


@dataclass(frozen=True)
class RunDirectoryPolled:
    """The run directory has news: a stop request, tasks that the launcher saw end, nodes whose heartbeat stopped."""

    stop_request: dict[str, Any] | None = None
    ended_tasks: Sequence[EarlyEnd] = ()
    silent_nodes: frozenset[int] = frozenset()


@dataclass(frozen=True)
class StopSignalled:
    """Slurm, or a user, has sent the agent a signal that ends the job."""

    reason: str
    signal: int


@dataclass(frozen=True)
class SignalPassedOn:
    """The agent has received a signal that is meant for the driver."""

    signal: int


@dataclass(frozen=True)
class MachineEvent:
    """An event for the state machine."""

    event: Event


@dataclass(frozen=True)
class Failure:
    """An event for the state machine that is the run's error unless the run continues; `log` or `tail` explains it."""

    event: Event
    node_index: int
    phase: str
    reason: str
    log: str | None  # a file
    tail: Sequence[str] = ()  # the last lines, if they are known already


@dataclass(frozen=True)
class TimePassed:
    """Some time has passed; for `stopped` seconds of it this process did not run."""

    stopped: float = 0.0


@dataclass(frozen=True)
class WorkFailed:
    """A task has raised this exception."""

    error: BaseException


@dataclass(frozen=True)
class TermEnded:
    """The run is over and its agents are released; without an exit code another node leads it."""

    exit_code: int | None


LeaderEvent = Union[
    AgentJoined,
    AgentRejected,
    HeartbeatAnswered,
    AgentMessage,
    AgentLost,
    RunDirectoryPolled,
    StopSignalled,
    SignalPassedOn,
    MachineEvent,
    Failure,
    TimePassed,
    WorkFailed,
    TermEnded,
]


class Inbox:
    """Events in the order in which they were posted, and the tasks that post them."""

    def __init__(self) -> None:
        self._events: deque[LeaderEvent] = deque()
        self._posted = asyncio.Event()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._slice_end = 0.0

    def post(self, event: LeaderEvent) -> None:
        self._events.append(event)
        self._posted.set()

    def put_back(self, events: Iterable[LeaderEvent]) -> None:
        """Put events before all others, in this order."""
        self._events.extendleft(reversed(list(events)))
        self._posted.set()

    async def next(self) -> LeaderEvent:
        """Return the oldest event; wait for one if there is none.

        Thousands of events may be there at once. Heartbeats must be sent and read meanwhile, so the loop gets control
        after every slice.
        """
        if self._events and time.monotonic() >= self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = time.monotonic() + SLICE_S
        while not self._events:
            self._posted.clear()
            await self._posted.wait()
            self._slice_end = time.monotonic() + SLICE_S
        return self._events.popleft()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Run a task; an exception in it is posted as WorkFailed."""
        task = asyncio.ensure_future(work)
        self.watch(task)
        return task

    def watch(self, task: asyncio.Future[Any]) -> None:
        """Keep a reference to a task, and post its exception."""
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def start_clock(self) -> None:
        """Post TimePassed regularly."""
        self.spawn(self._tick())

    def cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _tick(self) -> None:
        stopped = stopped_seconds()
        while True:
            await asyncio.sleep(CLOCK_INTERVAL_S)
            before, stopped = stopped, stopped_seconds()
            self.post(TimePassed(stopped - before))

    def _on_done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.post(WorkFailed(error))
