"""The leader's side of services: endpoints from nodes' reports, published to driver, status and run directory."""

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
from muster.agent.services.discovery import endpoint_variables, reachable_urls
from muster.lifecycle import events as m
from muster.lifecycle.config import FAIL
from muster.lifecycle.services import PlannedInstance, ServiceState
from muster.lifecycle.state_machine import RunStateMachine
from muster.rundir import write_json
from muster.rundir.hosts import host_file_name

logger = logging.getLogger(__name__)

SERVE_TIMEOUT_S = 30.0  # for every endpoint to serve all sandboxes: the hash ring of thousands takes seconds
MAX_HOSTS_NAMED = 8
RECORD_INTERVAL_S = 0.2  # minimum time between two writes of the records: thousands of instances change at once


@dataclass(frozen=True)
class InstanceReport:
    """A node's last report on its instance."""

    url: str | None = None
    peer_url: str | None = None  # of a sandbox: for the other nodes
    restarts: int = 0


class LeaderServices:
    """Feeds nodes' reports to the state machine, publishes endpoints, and sends sandboxes their members."""

    def __init__(
        self,
        identity: Identity,
        protocol: RunStateMachine,
        publisher: StatusPublisher,
        connections: Connections,
        off_loop: Callable[..., Awaitable[Any]],
        track: Callable[[asyncio.Future[Any]], None],
        feed: Callable[[m.Event], None],
        tails: LogTails,
        is_leader: Callable[[], bool],
    ) -> None:
        """`is_leader` returns whether this node still leads: only the leader publishes records."""
        self._tails = tails
        self._identity, self._protocol, self._publisher, self._connections = identity, protocol, publisher, connections
        self._off_loop, self._track, self._feed, self._is_leader = off_loop, track, feed, is_leader
        self._reports: dict[tuple[str, int], InstanceReport] = {}
        self._loads: dict[tuple[str, int], dict[str, Any]] = {}  # of sandboxes: the last load that each reported
        self._written = -1  # the version of the last written records; `_cycle` is their cycle
        self._cycle = protocol.cycle
        self._writing: asyncio.Future[None] | None = None
        self._endpoints: dict[str, list[str]] = {}  # of sandboxes: the members last sent
        self._members_version = 0
        self._sent_versions: dict[tuple[str, int], int] = {}  # members version last sent to each instance
        self._not_serving: set[tuple[str, int]] = set()  # instances whose endpoints do not serve that version yet
        self._served = asyncio.Event()  # set when `_not_serving` becomes empty
        self._members_lock = asyncio.Lock()
        self._all_ready: set[str] = set()
        publisher.services = self.snapshot

    @property
    def expected(self) -> bool:
        """Whether the job has services."""
        return bool(self._protocol.services.plans)

    # -- messages -----------------------------------------------------------------------------------------------

    def start(self, command: m.StartServices) -> None:
        for name in command.services:
            self._reports.pop((name, command.rank), None)
            self._loads.pop((name, command.rank), None)
        self._connections.send(command.rank, "start_services", names=command.services, cycle=self._protocol.cycle)

    def on_message(self, rank: int, message: dict[str, Any]) -> None:
        """Handle a node's message. A failure under the driver may follow from a lost node, so all must answer first."""
        if message["cycle"] != self._protocol.cycle or message["service"] not in self._protocol.services.plans:
            return
        if message["type"] == "service_serves":
            if self._sent_versions.get((message["service"], rank)) == message["version"]:
                self._not_serving.discard((message["service"], rank))
                if not self._not_serving:
                    self._served.set()
            return
        if message["type"] == "service_load":
            self._loads[message["service"], rank] = message["load"]
            return
        name, state = message["service"], ServiceState(message["state"])
        report = InstanceReport(message.get("url"), message.get("between"), message.get("restarts", 0))
        self._reports[name, rank] = report
        event = m.ServiceReport(name, rank, state, message["words"], message["cycle"])
        if (
            state is ServiceState.FAILED
            and self._protocol.driver_running
            and self._protocol.config.on_node_loss != FAIL
        ):
            self._track(asyncio.ensure_future(self._feed_after_all_answer(event)))
        else:
            self._feed(event)

    async def _feed_after_all_answer(self, event: m.ServiceReport) -> None:
        await self._connections.wait_for_all_answers()
        self._feed(event)

    def handle_changes(self) -> None:
        """Publish changes of state, as events at once and as records soon. Call this after every event."""
        services = self._protocol.services
        if not services.plans:
            return
        changes, services.changes = services.changes, []
        for change in changes:
            self._publish_change(change)
        if services.failure is not None:
            self._publish_failure(services.failure)
        if self._protocol.cycle != self._cycle:
            self._all_ready, self._endpoints = set(), {}  # new instances do not know their members
            self._sent_versions, self._not_serving = {}, set()
        if services.version != self._written or self._protocol.cycle != self._cycle:
            self._written, self._cycle = services.version, self._protocol.cycle
            if self._writing is None or self._writing.done():
                self._writing = asyncio.ensure_future(self._write())
                self._track(self._writing)

    def _publish_change(self, change: PlannedInstance) -> None:
        if change.state is ServiceState.STARTING:
            return
        host, report = self._protocol.nodes[change.rank].host, self._report_of(change)
        self._publisher.event(
            "service",
            service=change.service,
            rank=change.rank,
            host=host,
            state=change.state.value,
            url=report.url,
            restarts=report.restarts,
            reason=change.detail,
        )
        if change.state is ServiceState.RESTARTING:
            self._publisher.phase(f"service {change.service} on {host} {change.detail}; restart {report.restarts}")
        count, wanted = self._count(change.service)
        if count == wanted and change.state is ServiceState.READY and change.service not in self._all_ready:
            self._all_ready.add(change.service)
            self._publisher.phase(f"service {change.service} is ready: {count} of {wanted}")

    def _publish_failure(self, failure: PlannedInstance) -> None:
        outcome, node = self._protocol.outcome, self._protocol.nodes[failure.rank]
        if outcome is not None and outcome.phase == "service":
            attempt, cycle = self._identity.attempt, self._protocol.cycle
            log = attempt.service_log(failure.service, host_file_name(node.host), cycle)
            self._publisher.note_error(node, "service", outcome.end_reason, self._tails.read(log))
        self._protocol.services.failure = None

    # -- publishing ---------------------------------------------------------------------------------------------

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables for the driver, or a gang's processes, on this node."""
        found = {"MUSTER_SERVICES_DIR": self._identity.attempt.services_dir} if self.expected else {}
        records = {name: self._record(name) for name in self._protocol.services.plans}
        return {**found, **endpoint_variables(records, rank)}

    def snapshot(self) -> dict[str, Any]:
        """Return the services' part of the status, including the load of sandboxes."""
        found = {name: self._entry(name) for name in self._protocol.services.plans}
        for name, entry in found.items():
            for instance in entry["instances"]:
                if (load := self._loads.get((name, instance["rank"]))) is not None:
                    instance["load"] = load
        return found

    def _entry(self, name: str) -> dict[str, Any]:
        ready, wanted = self._count(name)
        instances = []
        for one in self._protocol.services.instances_of(name):
            report, host = self._report_of(one), self._protocol.nodes[one.rank].host
            facts = {"rank": one.rank, "host": host, "state": one.state.value}
            instances.append({**facts, "url": report.url, "restarts": report.restarts})
        gate = self._protocol.services.plans[name].gate
        return {"wanted": wanted, "ready": ready, "gate": gate, "instances": instances}

    def _record(self, name: str) -> dict[str, Any]:
        """Return the service's record. Readers compare attempt and cycle; `local` endpoints are on loopback."""
        protocol = self._protocol
        record: dict[str, Any] = {
            "service": name,
            "attempt": self._identity.attempt.number,
            "term": self._publisher.term,
            "cycle": protocol.cycle,
            "version": protocol.services.version,
            **self._entry(name),
            "local": any(self._report_of(one).peer_url for one in protocol.services.instances_of(name)),
        }
        return {**record, "urls": reachable_urls(record, protocol.leader)[1]}

    async def _write(self) -> None:
        """Publish until nothing has changed since the last write."""
        version = None
        while version != (self._written, self._cycle):
            version = self._written, self._cycle
            await self.publish()
            await asyncio.sleep(RECORD_INTERVAL_S)

    async def publish(self) -> None:
        """Write the current records, and send changed members to sandboxes."""
        if not self.expected or not self._is_leader():
            return
        attempt, names = self._identity.attempt, list(self._protocol.services.plans)
        records = {attempt.service_record(name): self._record(name) for name in names}
        await self._off_loop(_write_records, attempt.services_dir, records)
        async with self._members_lock:  # keeps versions in order
            for name in names:
                await self._send_members(name)

    async def wait_until_served(self) -> None:
        """Wait until every node's endpoint serves all sandboxes (else a session could exist on two nodes), or time out.

        An endpoint that fails to do so serves only the sandbox of its node.
        """
        end = time.monotonic() + SERVE_TIMEOUT_S
        while self._not_serving:
            self._served.clear()
            try:
                await asyncio.wait_for(self._served.wait(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                hosts = [
                    self._protocol.nodes[rank].host for _, rank in sorted(self._not_serving, key=lambda key: key[1])
                ]
                more = f" and {len(hosts) - MAX_HOSTS_NAMED} more" if len(hosts) > MAX_HOSTS_NAMED else ""
                logger.warning(
                    f"after {SERVE_TIMEOUT_S:g} s the sandboxes on {', '.join(hosts[:MAX_HOSTS_NAMED])}{more} do not "
                    "serve all the others yet (see their logs and GET /health for the reason); the driver starts anyway"
                )
                return

    async def _send_members(self, name: str) -> None:
        """Send a sandbox's members if they changed; the first time when all are ready or the driver runs."""
        endpoints = [report.peer_url for one in self._ready(name) if (report := self._report_of(one)).peer_url]
        count, wanted = self._count(name)
        if endpoints == self._endpoints.get(name, []) or not (count == wanted or self._protocol.driver_running):
            return
        self._endpoints[name] = endpoints
        self._members_version += 1
        self._sent_versions = {key: version for key, version in self._sent_versions.items() if key[0] != name}
        ready = [(name, one.rank) for one in self._ready(name)]
        self._sent_versions.update(dict.fromkeys(ready, self._members_version))
        self._not_serving = {key for key in self._not_serving if key[0] != name}.union(ready)
        await self._connections.send_each(
            [one.rank for one in self._protocol.services.instances_of(name)],
            "service_members",
            service=name,
            version=self._members_version,
            endpoints=endpoints,
            cycle=self._protocol.cycle,
        )

    def _report_of(self, instance: PlannedInstance) -> InstanceReport:
        return self._reports.get((instance.service, instance.rank), InstanceReport())

    def _ready(self, name: str) -> list[PlannedInstance]:
        return [one for one in self._protocol.services.instances_of(name) if one.state is ServiceState.READY]

    def _count(self, name: str) -> tuple[int, int]:
        """Return the number of ready instances and the number wanted."""
        services = self._protocol.services
        return services.ready[name], services.plans[name].instance_count(self._protocol.config.active_nodes)


def _write_records(directory: str, records: dict[str, dict[str, Any]]) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
        for path, record in records.items():
            write_json(path, record)
    except OSError as error:  # after a full disk the records are stale; the run continues
        logger.warning("%s could not be written: %s", directory, error)
