"""A leader's context with real parts, except for its connections, which record what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from muster.agent.control.codec import Message
from muster.agent.job import Identity, Job
from muster.agent.leader.context import LeaderContext
from muster.agent.leader.files import Files
from muster.agent.leader.inbox import Failure, Inbox, LeaderEvent, MachineEvent
from muster.agent.leader.leader_address import LeaderAddress
from muster.agent.leader.leader_lease import LeaseExecutor
from muster.agent.leader.status_publisher import RunError, StatusPublisher
from muster.election.membership import first_membership
from muster.lifecycle import events as m
from muster.lifecycle.state_machine import RunConfig, RunStateMachine
from muster.process.lease import ProcessLease
from muster.rundir import RunPaths, write_json

FIELDS = {
    "groups": [],
    "nodes": 3,
    "spares": 0,
    "ray": False,
    "stop_grace": 30.0,
    "signal_grace": 5.0,
    "command": ["x"],
    "node_checks": "none",
    "node_check": {},
}
M = TypeVar("M", bound=Message)
HOSTS = ["n0", "n1", "n2"]


def job(**fields: Any) -> Job:
    return Job(**{**dict.fromkeys(Job.__dataclass_fields__), **FIELDS, **fields})


class SentMessages:
    """Replaces the connections: records messages, and answers requests when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Message]] = []
        self.refused: list[tuple[int, str]] = []
        self.released: list[Message] = []
        self.beats = 0
        self.closed = False
        self.peers: list[str] = []  # this node's addresses that other nodes have reached
        self.stacks: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()
        self.all_answered = asyncio.Event()

    def send(self, node_index: int, message: Message) -> None:
        self.sent.append((node_index, message))

    def send_all(self, message: Message) -> None:
        self.send(-1, message)

    async def send_each(self, node_indexes: Sequence[int], message: Message) -> None:
        for node_index in node_indexes:
            self.send(node_index, message)

    async def ask(self, request: Message, timeout: float) -> list[bool]:
        return await self.stacks

    async def wait_for_all_answers(self) -> None:
        await self.all_answered.wait()

    async def wait_for_peer(self, seconds: float | None) -> list[str]:
        return self.peers

    def refuse(self, node_index: int, reason: str) -> None:
        self.refused.append((node_index, reason))

    def beat_once(self) -> None:
        self.beats += 1

    async def release(self, farewell: Message) -> None:
        self.released.append(farewell)

    def close_all(self) -> None:
        self.closed = True

    def of(self, kind: type[M]) -> list[tuple[int, M]]:
        return [(node_index, message) for node_index, message in self.sent if isinstance(message, kind)]


class LeaderParts:
    """The context of a leader of three nodes in a new run directory."""

    def __init__(self, directory: Path, config: RunConfig | None = None, **fields: Any) -> None:
        run = RunPaths(str(directory / "run-20260101T000000-ab12"))
        self.attempt = run.attempt(0)
        (Path(self.attempt.root) / "logs").mkdir(parents=True)
        write_json(run.env, {})
        self.identity = Identity(node_index=0, host="n0", run=run, attempt=self.attempt, local=True)
        self.machine = RunStateMachine(config or RunConfig(HOSTS, ray=False), 0.0)
        self.sent, self.inbox, self.process_lease = SentMessages(), Inbox(), ProcessLease()
        self.publisher = StatusPublisher(self.identity, self.machine)
        connections: Any = self.sent
        lease = LeaseExecutor(self.machine, connections, first_membership(3), self.process_lease)
        files = Files()
        self.context = LeaderContext(
            self.identity,
            job(**fields),
            self.machine,
            connections,
            self.publisher,
            files,
            self.inbox,
            lease,
            RunError(self.publisher, files, self.inbox),
            LeaderAddress(self.identity.local, None, {}),
        )

    @property
    def posted(self) -> list[LeaderEvent]:
        """The events in the inbox."""
        return list(self.inbox._events)

    def fed(self) -> list[m.Event]:
        """The posted events that are for the state machine."""
        return [event.event for event in self.posted if isinstance(event, (MachineEvent, Failure))]

    def phases(self) -> str:
        return "".join(self.publisher._phases)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [cast(dict[str, Any], event) for event in self.publisher._events if event["event"] == name]

    def arrive(self) -> None:
        for node_index, host in enumerate(HOSTS):
            self.machine.handle(m.Arrived(node_index, host), 0.0)


async def wait_until(condition: Any) -> None:
    """Wait for the loop to make the condition true."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 120)
