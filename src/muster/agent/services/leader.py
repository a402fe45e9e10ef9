"""What the leader knows of services beyond their states: where they are, for driver, status and run directory."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from muster.agent.control.connections import Connections
from muster.agent.job import Identity
from muster.agent.leader.log_tail import LogTails
from muster.agent.leader.status_publisher import StatusPublisher
from muster.agent.services.discovery import reachable, variables
from muster.lifecycle import events as m
from muster.lifecycle.config import FAIL
from muster.lifecycle.services import PlannedInstance, ServiceState
from muster.lifecycle.state_machine import RunStateMachine
from muster.rundir import write_json
from muster.rundir.hosts import host_file_name

logger = logging.getLogger(__name__)

SERVE_S = 30.0  # until which every endpoint serves all sandboxes: nginx takes seconds for thousands
MOST_NAMED = 8
WRITE_S = 0.2  # at most so often are the records written, however many instances change


@dataclass(frozen=True)
class Told:
    """What a node has said of its instance."""

    url: str | None = None
    between: str | None = None  # of a sandbox: for the other nodes
    restarts: int = 0


class LeadServices:
    """The edge of the protocol's services: nodes' words in, endpoints and orders out."""

    def __init__(
        self,
        identity: Identity,
        protocol: RunStateMachine,
        publisher: StatusPublisher,
        members: Connections,
        off_loop: Callable[..., Awaitable[Any]],
        watch: Callable[[asyncio.Future[Any]], None],
        feed: Callable[[m.Event], None],
        tails: LogTails,
        entitled: Callable[[], bool],
    ) -> None:
        """`entitled`: whether this is still the leader, whose records count."""
        self._tails = tails
        self._identity, self._protocol, self._publisher, self._members = identity, protocol, publisher, members
        self._off_loop, self._watch, self._feed, self._entitled = off_loop, watch, feed, entitled
        self._told: dict[tuple[str, int], Told] = {}
        self._loads: dict[tuple[str, int], dict[str, Any]] = {}  # of sandboxes: what each said of itself last
        self._seen = -1  # the version, and the cycle, that the records were last made of
        self._cycle = protocol.cycle
        self._writing: asyncio.Future[None] | None = None
        self._endpoints: dict[str, list[str]] = {}  # of sandboxes: what the nodes know
        self._versions = 0
        self._current: dict[tuple[str, int], int] = {}  # the version that each was told last
        self._behind: set[tuple[str, int]] = set()  # those whose endpoints do not serve that version yet
        self._served = asyncio.Event()  # there are none of them
        self._telling = asyncio.Lock()
        self._all_ready: set[str] = set()
        publisher.services = self.snapshot

    @property
    def expected(self) -> bool:
        """Whether the job has services at all."""
        return bool(self._protocol.services.plans)

    # -- in and out ---------------------------------------------------------------------------------------------

    def begin(self, command: m.StartServices) -> None:
        for name in command.services:
            self._told.pop((name, command.rank), None)
            self._loads.pop((name, command.rank), None)
        self._members.send(command.rank, "start_services", names=command.services, cycle=self._protocol.cycle)

    def take(self, rank: int, message: dict[str, Any]) -> None:
        """A node's word. A failure under a driver may follow from a lost node: if it does, that is the reason."""
        if message["cycle"] != self._protocol.cycle or message["service"] not in self._protocol.services.plans:
            return
        if message["type"] == "service_serves":
            if self._current.get((message["service"], rank)) == message["version"]:
                self._behind.discard((message["service"], rank))
                if not self._behind:
                    self._served.set()
            return
        if message["type"] == "service_load":
            self._loads[message["service"], rank] = message["load"]
            return
        name, state = message["service"], ServiceState(message["state"])
        self._told[name, rank] = Told(message.get("url"), message.get("between"), message.get("restarts", 0))
        event = m.ServiceReport(name, rank, state, message["words"], message["cycle"])
        if state is ServiceState.FAILED and self._protocol.driver_running and self._protocol.plan.on_node_loss != FAIL:
            self._watch(asyncio.ensure_future(self._when_all_have_answered(event)))
        else:
            self._feed(event)

    async def _when_all_have_answered(self, event: m.ServiceReport) -> None:
        await self._members.wait_for_all_answers()
        self._feed(event)

    def look(self) -> None:
        """After every event: what has changed is told, in events at once and in records soon."""
        services = self._protocol.services
        if not services.plans:
            return
        changes, services.changes = services.changes, []
        for change in changes:
            self._note(change)
        if services.failure is not None:
            self._note_failure(services.failure)
        if self._protocol.cycle != self._cycle:
            self._all_ready, self._endpoints = set(), {}  # who starts anew knows nothing of others
            self._current, self._behind = {}, set()
        if services.version != self._seen or self._protocol.cycle != self._cycle:
            self._seen, self._cycle = services.version, self._protocol.cycle
            if self._writing is None or self._writing.done():
                self._writing = asyncio.ensure_future(self._write())
                self._watch(self._writing)

    def _note(self, change: PlannedInstance) -> None:
        if change.state is ServiceState.STARTING:
            return
        host, told = self._protocol.nodes[change.rank].host, self._of(change)
        self._publisher.event(
            "service",
            service=change.service,
            rank=change.rank,
            host=host,
            state=change.state.value,
            url=told.url,
            restarts=told.restarts,
            reason=change.words,
        )
        if change.state is ServiceState.RESTARTING:
            self._publisher.phase(f"service {change.service} on {host} {change.words}; restart {told.restarts}")
        count, wanted = self._count(change.service)
        if count == wanted and change.state is ServiceState.READY and change.service not in self._all_ready:
            self._all_ready.add(change.service)
            self._publisher.phase(f"service {change.service} is ready: {count} of {wanted}")

    def _note_failure(self, failure: PlannedInstance) -> None:
        outcome, node = self._protocol.outcome, self._protocol.nodes[failure.rank]
        if outcome is not None and outcome.phase == "service":
            attempt, cycle = self._identity.attempt, self._protocol.cycle
            log = attempt.service_log(failure.service, host_file_name(node.host), cycle)
            self._publisher.note_error(node, "service", outcome.end_reason, self._tails.read(log))
        self._protocol.services.failure = None

    # -- what others find ---------------------------------------------------------------------------------------

    def environment(self, rank: int) -> dict[str, str]:
        """For the driver, or a part of it, on this node."""
        found = {"MUSTER_SERVICES_DIR": self._identity.attempt.services_dir} if self.expected else {}
        return {**found, **variables({name: self._record(name) for name in self._protocol.services.plans}, rank)}

    def snapshot(self) -> dict[str, Any]:
        """For the status: with the load of sandboxes."""
        found = {name: self._entry(name) for name in self._protocol.services.plans}
        for name, entry in found.items():
            for instance in entry["instances"]:
                if (load := self._loads.get((name, instance["rank"]))) is not None:
                    instance["load"] = load
        return found

    def _entry(self, name: str) -> dict[str, Any]:
        ready, wanted = self._count(name)
        instances = [
            {
                "rank": one.rank,
                "host": self._protocol.nodes[one.rank].host,
                "state": one.state.value,
                "url": self._of(one).url,
                "restarts": self._of(one).restarts,
            }
            for one in self._protocol.services.of(name)
        ]
        gate = self._protocol.services.plans[name].gate
        return {"wanted": wanted, "ready": ready, "gate": gate, "instances": instances}

    def _record(self, name: str) -> dict[str, Any]:
        """Attempt, term and cycle tell whether it is of the present; `local`: reached on its own node alone."""
        protocol = self._protocol
        record: dict[str, Any] = {
            "service": name,
            "attempt": self._identity.attempt.number,
            "term": self._publisher.term,
            "cycle": protocol.cycle,
            "version": protocol.services.version,
            **self._entry(name),
            "local": any(self._of(one).between for one in protocol.services.of(name)),
        }
        return {**record, "urls": reachable(record, protocol.leader)[1]}

    async def _write(self) -> None:
        """Until nothing has changed since the last time."""
        version = None
        while version != (self._seen, self._cycle):
            version = self._seen, self._cycle
            await self.publish()
            await asyncio.sleep(WRITE_S)

    async def publish(self) -> None:
        """The records as of now; and to the nodes of a sandbox, who they are."""
        if not self.expected or not self._entitled():
            return
        attempt, names = self._identity.attempt, list(self._protocol.services.plans)
        records = {attempt.service_record(name): self._record(name) for name in names}
        await self._off_loop(_write_records, attempt.services_dir, records)
        async with self._telling:  # nobody is told of older members after newer ones
            for name in names:
                await self._tell_members(name)

    async def until_served(self) -> None:
        """Until every node's endpoint serves all sandboxes: before that, a session would be at two nodes. Or for long
        enough: one that cannot do that serves its own."""
        end = time.monotonic() + SERVE_S
        while self._behind:
            self._served.clear()
            try:
                await asyncio.wait_for(self._served.wait(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                hosts = [self._protocol.nodes[rank].host for _, rank in sorted(self._behind, key=lambda key: key[1])]
                more = f" and {len(hosts) - MOST_NAMED} more" if len(hosts) > MOST_NAMED else ""
                logger.warning(
                    f"after {SERVE_S:g} s the sandboxes on {', '.join(hosts[:MOST_NAMED])}{more} do not serve all the "
                    "others yet (their logs and GET /health say why); the driver starts all the same"
                )
                return

    async def _tell_members(self, name: str) -> None:
        """From when there are all that there should be; before that nobody asks."""
        endpoints = [told.between for one in self._ready(name) if (told := self._of(one)).between]
        count, wanted = self._count(name)
        if endpoints == self._endpoints.get(name, []) or not (count == wanted or self._protocol.driver_running):
            return
        self._endpoints[name] = endpoints
        self._versions += 1
        self._current = {key: version for key, version in self._current.items() if key[0] != name}
        ready = [(name, one.rank) for one in self._ready(name)]
        self._current.update(dict.fromkeys(ready, self._versions))
        self._behind = {key for key in self._behind if key[0] != name}.union(ready)
        await self._members.send_each(
            [one.rank for one in self._protocol.services.of(name)],
            "service_members",
            service=name,
            version=self._versions,
            endpoints=endpoints,
            cycle=self._protocol.cycle,
        )

    # -- small questions ----------------------------------------------------------------------------------------

    def _of(self, instance: PlannedInstance) -> Told:
        return self._told.get((instance.service, instance.rank), Told())

    def _ready(self, name: str) -> list[PlannedInstance]:
        return [one for one in self._protocol.services.of(name) if one.state is ServiceState.READY]

    def _count(self, name: str) -> tuple[int, int]:
        """How many are ready, and how many there should be."""
        services = self._protocol.services
        return services.ready[name], services.plans[name].wanted(self._protocol.plan.wanted)


def _write_records(directory: str, records: dict[str, dict[str, Any]]) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
        for path, record in records.items():
            write_json(path, record)
    except OSError as error:  # a full disk costs the view, not the run
        logger.warning("%s could not be written: %s", directory, error)
