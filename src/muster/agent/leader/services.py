"""The leader's side of services: endpoints from nodes' reports, published to driver, status and run directory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.agent.control.messages import ServiceLoad, ServiceServes, ServiceStatus, StartInstances
from muster.agent.event_loop import running_now
from muster.agent.leader.context import LeaderContext
from muster.agent.leader.inbox import MachineEvent
from muster.agent.leader.published_replicas import PublishedReplicas, ReplicaList
from muster.agent.service_model import ENDPOINT
from muster.agent.services.discovery import Endpoints
from muster.agent.services.endpoint_load import sum_loads
from muster.agent.services.instance import LOAD_POLL_S
from muster.agent.services.members import NO_MEMBERS, MemberList
from muster.lifecycle import events as m
from muster.lifecycle.config import FAIL
from muster.lifecycle.services import PlannedInstance, ServiceState
from muster.lifecycle.state_machine import Transition
from muster.rundir import AttemptPaths, make_private_dirs, write_atomic, write_json
from muster.rundir.hosts import host_file_name

logger = logging.getLogger(__name__)

SERVE_TIMEOUT_S = 30.0  # for every endpoint to serve all sandboxes: the hash ring of thousands takes seconds
MAX_HOSTS_NAMED = 8
REPLICAS_POLL_S = 0.5  # interval of polls of the replicas that programs publish
RECORD_INTERVAL_S = 0.2  # minimum time between two writes of the records: thousands of instances change at once
RECORD_COST_FACTOR = 20  # or so many times what building them took: at most 5% of a core


@dataclass(frozen=True)
class InstanceReport:
    """A node's last report on its instance."""

    url: str | None = None
    peer_url: str | None = None  # of a sandbox: for the other nodes
    restarts: int = 0


@dataclass(frozen=True)
class ServiceRecord:
    """A service as published, with what nodes are told of it."""

    key: tuple[int, ...]  # versions of everything that it was made from
    entry: Mapping[str, Any]  # its part of the status
    content: Mapping[str, Any]  # of the record's file
    endpoints: Endpoints


class LeaderServices:
    """Posts nodes' reports to the state machine, publishes services, sends sandboxes and endpoints their members."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context
        self._identity, self._protocol, self._publisher = context.identity, context.machine, context.publisher
        self._connections = context.connections
        self._reports: dict[tuple[str, int], InstanceReport] = {}
        self._loads: dict[tuple[str, int], Mapping[str, Any]] = {}  # the last load that each proxy or sandbox reported
        self._summed_loads: dict[str, tuple[float, dict[str, Any]]] = {}  # of endpoints, with the time
        self._written = -1  # the version of the last written records; `_cycle` is their cycle
        self._cycle = context.machine.cycle
        self._changes = 0  # what must be written; grows with every change
        self._writing: asyncio.Future[None] | None = None
        self._reports_version = 0  # grows with every change of `_reports`
        self._records: dict[str, ServiceRecord] = {}  # by service; made again when something has changed
        self._build_s = 0.0  # CPU time that the last records took, without the writing, which a slow disk delays
        self._members: dict[str, MemberList] = {}  # of sandboxes and endpoints: the members last sent
        self._member_nodes: dict[str, set[int]] = {}  # the nodes that were sent those members
        self._members_version = NO_MEMBERS
        self._not_serving: set[tuple[str, int]] = set()  # instances whose endpoints do not serve that version yet
        self._served = asyncio.Event()  # set when `_not_serving` becomes empty
        self._members_lock = asyncio.Lock()
        self._all_ready: set[str] = set()
        plans = context.machine.services.plans
        self._pools = [name for name, plan in plans.items() if plan.is_endpoint and plan.of is None]
        self._published: dict[str, ReplicaList] = {}  # of these endpoints, as their programs have published them
        self._sent: dict[str, int] = {}  # the version of that list which was last sent
        self._confirmed: dict[str, int] = {}  # the one that all proxies serve
        self._polling: asyncio.Future[None] | None = None

    @property
    def expected(self) -> bool:
        """Whether the job has services."""
        return bool(self._protocol.services.plans)

    # -- messages -----------------------------------------------------------------------------------------------

    def start(self, command: m.StartServices) -> None:
        self._reports_version += 1
        if self._pools and self._polling is None:
            self._polling = self._context.inbox.spawn(self._poll_published())
        for name in command.services:
            self._member_nodes.get(name, set()).discard(command.node_index)
            self._reports.pop((name, command.node_index), None)
            self._loads.pop((name, command.node_index), None)
        self._connections.send(command.node_index, StartInstances(tuple(command.services), command.cycle))

    def on_message(self, node_index: int, message: ServiceStatus | ServiceLoad | ServiceServes) -> None:
        """Handle a node's message about an instance; messages of another cycle are ignored."""
        if message.cycle != self._protocol.cycle or message.service not in self._protocol.services.plans:
            return
        if isinstance(message, ServiceServes):
            self._on_serves(node_index, message)
        elif isinstance(message, ServiceLoad):
            self._loads[message.service, node_index] = message.load
        else:
            self._on_status(node_index, message)

    def _on_serves(self, node_index: int, message: ServiceServes) -> None:
        members = self._members.get(message.service)
        if members is None:
            return
        if message.version == NO_MEMBERS:
            self._connections.send(node_index, members.complete(message.service, message.cycle))
        elif message.version == members.version:
            self._not_serving.discard((message.service, node_index))
            self._confirm_published(message.service)
            if not self._not_serving:
                self._served.set()

    def _on_status(self, node_index: int, message: ServiceStatus) -> None:
        """Post the report. A failure under the driver may follow from a lost node, so all must answer first."""
        report = InstanceReport(message.url, message.peer_url, message.restarts)
        if self._reports.get((message.service, node_index)) != report:
            self._reports[message.service, node_index] = report
            self._reports_version += 1
        event = m.ServiceReport(message.service, node_index, message.state, message.detail, message.cycle)
        if (
            message.state is ServiceState.FAILED
            and self._protocol.driver_running
            and self._protocol.config.on_node_loss != FAIL
        ):
            self._context.inbox.spawn(self._post_after_all_answer(event))
        else:
            self._context.inbox.post(MachineEvent(event))

    async def _post_after_all_answer(self, event: m.ServiceReport) -> None:
        await self._connections.wait_for_all_answers()
        self._context.inbox.post(MachineEvent(event))

    def handle_changes(self, transition: Transition) -> None:
        """Publish changes of state, as events at once and as records soon. Call this after every transition."""
        services = self._protocol.services
        if not services.plans:
            return
        for change in transition.service_changes:
            self._publish_change(change)
        if transition.service_failure is not None:
            self._publish_failure(transition.service_failure)
        if self._protocol.cycle != self._cycle:
            self._all_ready, self._not_serving = set(), set()
            self._members, self._member_nodes = {}, {}  # new instances do not know their members
            self._published, self._sent = {}, {}
        if services.version != self._written or self._protocol.cycle != self._cycle:
            self._written, self._cycle = services.version, self._protocol.cycle
            self._publish_soon()

    def _publish_change(self, change: PlannedInstance) -> None:
        if change.state is ServiceState.STARTING:
            return
        host, report = self._protocol.nodes[change.node_index].host, self._report_of(change)
        self._publisher.event(
            "service",
            service=change.service,
            rank=change.node_index,
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
        outcome, node = self._protocol.outcome, self._protocol.nodes[failure.node_index]
        if outcome is not None and outcome.phase == "service":
            attempt, cycle = self._identity.attempt, self._protocol.cycle
            log = attempt.service_log(failure.service, host_file_name(node.host), cycle)
            self._context.error.note(node, "service", outcome.end_reason, log)

    # -- publishing ---------------------------------------------------------------------------------------------

    def environment(self, node_index: int) -> dict[str, str]:
        """Return the variables for the driver, or a gang's processes, on this node."""
        attempt = self._identity.attempt
        found = {"MUSTER_SERVICES_DIR": attempt.services_dir} if self.expected else {}
        for name in self._protocol.services.plans:
            found.update(self._record(name).endpoints.variables(name, node_index, attempt.service_urls(name)))
        return found

    def snapshot(self) -> dict[str, Any]:
        """Return the services' part of the status, including the load of sandboxes."""
        return {name: self._with_loads(name) for name in self._protocol.services.plans}

    def _with_loads(self, name: str) -> dict[str, Any]:
        entry, loads = self._record(name).entry, self._loads
        if self._protocol.services.plans[name].is_endpoint:
            return {**entry, "load": self._summed_load(name)}
        instances = [
            {**one, "load": loads[name, one["rank"]]} if (name, one["rank"]) in loads else one
            for one in entry["instances"]
        ]
        return {**entry, "instances": instances}

    def _summed_load(self, name: str) -> dict[str, Any]:
        """Return the sum of the proxies' loads; added up at most once in the time in which each proxy reports."""
        known = self._summed_loads.get(name)
        if known is None or time.monotonic() - known[0] >= LOAD_POLL_S / 2:
            found = sum_loads(load for (service, _), load in self._loads.items() if service == name)
            known = self._summed_loads[name] = time.monotonic(), found
        return known[1]

    def _entry(self, name: str) -> dict[str, Any]:
        ready, wanted = self._count(name)
        instances = []
        for one in self._protocol.services.instances_of(name):
            report, host = self._report_of(one), self._protocol.nodes[one.node_index].host
            facts = {"rank": one.node_index, "host": host, "state": one.state.value}
            instances.append({**facts, "url": report.url, "restarts": report.restarts})
        plan = self._protocol.services.plans[name]
        kind = {"kind": ENDPOINT, "of": plan.of} if plan.is_endpoint else {}
        return {**kind, "wanted": wanted, "ready": ready, "gate": plan.gate, "instances": instances}

    def _record(self, name: str) -> ServiceRecord:
        """Return the service's record; made once for all nodes of a gang, which need it at the same time."""
        protocol = self._protocol
        key = (protocol.services.version, self._reports_version, protocol.cycle, protocol.leader)
        known = self._records.get(name)
        if known is None or known.key != key:
            known = self._records[name] = self._build_record(name, key)
        return known

    def _build_record(self, name: str, key: tuple[int, ...]) -> ServiceRecord:
        """Return a new record. Readers compare attempt and cycle; `local` endpoints are on loopback."""
        protocol, entry = self._protocol, self._entry(name)
        content: dict[str, Any] = {
            "service": name,
            "attempt": self._identity.attempt.number,
            "term": self._publisher.term,
            "cycle": protocol.cycle,
            "version": protocol.services.version,
            **entry,
            "local": protocol.services.plans[name].is_endpoint
            or any(self._report_of(one).peer_url for one in protocol.services.instances_of(name)),
        }
        if name in self._pools:
            content["replicas_version"] = self._confirmed.get(name)
        endpoints = Endpoints.of_record(content)
        return ServiceRecord(key, entry, {**content, "urls": list(endpoints.reachable(protocol.leader))}, endpoints)

    def _publish_soon(self) -> None:
        self._changes += 1
        if self._writing is None or self._writing.done():
            self._writing = self._context.inbox.spawn(self._write())

    async def _poll_published(self) -> None:
        """Poll the replicas that programs publish. Only the leader does, and sends the changes to all nodes."""
        published = PublishedReplicas(self._identity.attempt, self._pools)
        while True:
            cycle = self._protocol.cycle
            found = await self._context.files.run(published.poll, cycle)
            if found and cycle == self._cycle == self._protocol.cycle:
                self._published.update(found)
                self._publish_soon()
            await asyncio.sleep(REPLICAS_POLL_S)

    def _confirm_published(self, name: str) -> None:
        """Record that all proxies serve the replicas that were sent, and have no request at others."""
        if name in self._sent and not any(service == name for service, _ in self._not_serving):
            self._confirmed[name] = self._sent.pop(name)
            self._reports_version += 1
            self._publish_soon()

    async def _write(self) -> None:
        """Publish until nothing has changed since the last write."""
        written = None
        while written != self._changes:
            written = self._changes
            await self.publish()
            await asyncio.sleep(max(RECORD_INTERVAL_S, RECORD_COST_FACTOR * self._build_s))

    async def publish(self) -> None:
        """Write the current records, and send changed members to sandboxes."""
        if not self.expected or self._context.lease.over:
            return
        attempt, names = self._identity.attempt, list(self._protocol.services.plans)
        began = time.thread_time()
        records = [self._record(name) for name in names]
        self._build_s = time.thread_time() - began
        await self._context.files.run(_write_records, attempt, records)
        async with self._members_lock:  # keeps versions in order
            for name in names:
                await self._send_members(name)

    async def wait_until_served(self) -> None:
        """Wait until every node's endpoint serves all sandboxes (else a session could exist on two nodes), or time out.

        An endpoint that fails to do so serves only the sandbox of its node.
        """
        end = running_now() + SERVE_TIMEOUT_S
        while self._not_serving:
            self._served.clear()
            try:
                await asyncio.wait_for(self._served.wait(), max(0.0, end - running_now()))
            except asyncio.TimeoutError:
                hosts = [
                    self._protocol.nodes[node_index].host
                    for _, node_index in sorted(self._not_serving, key=lambda key: key[1])
                ]
                more = f" and {len(hosts) - MAX_HOSTS_NAMED} more" if len(hosts) > MAX_HOSTS_NAMED else ""
                plans = self._protocol.services.plans
                kind = "endpoints" if any(plans[name].is_endpoint for name, _ in self._not_serving) else "sandboxes"
                logger.warning(
                    f"after {SERVE_TIMEOUT_S:g} s the {kind} on {', '.join(hosts[:MAX_HOSTS_NAMED])}{more} do not "
                    "serve all the others yet (see their logs and GET /health for the reason); the driver starts anyway"
                )
                return

    async def _send_members(self, name: str) -> None:
        """Send the members of a sandbox or an endpoint if they changed, and to new nodes.

        The first time is when all are ready or the driver runs.
        """
        plan, cycle = self._protocol.services.plans[name], self._protocol.cycle
        published = self._published.get(name)
        if published is not None and published.version != self._confirmed.get(name):
            self._sent[name] = published.version
        urls = published.urls if published is not None else self._member_urls(name)
        sources = [name] if plan.of is None else [name, plan.of]
        are_ready = all(count == wanted for count, wanted in map(self._count, sources))
        before, known = self._members.get(name), self._member_nodes.get(name, set())
        nodes = [one.node_index for one in self._protocol.services.instances_of(name)]
        new_nodes = [node_index for node_index in nodes if before is None or node_index not in known]
        is_same = urls == (before.endpoints if before is not None else frozenset())
        self._not_serving -= {key for key in self._not_serving if key[0] == name and key[1] not in nodes}
        if not (are_ready or self._protocol.driver_running) or (is_same and (before is None or not new_nodes)):
            self._confirm_published(name)
            return
        self._member_nodes[name] = set(nodes)
        ready = {(name, one.node_index) for one in self._ready(name)}
        if before is not None and is_same:
            members = before
            self._not_serving |= ready.intersection((name, node_index) for node_index in new_nodes)
        else:
            self._members_version += 1
            members = self._members[name] = MemberList(self._members_version, urls)
            self._not_serving = {key for key in self._not_serving if key[0] != name} | ready
            if before is not None and known:
                update = members.since(before, name, cycle)
                await self._connections.send_each([node_index for node_index in nodes if node_index in known], update)
        if new_nodes:
            await self._connections.send_each(new_nodes, members.complete(name, cycle))

    def _member_urls(self, name: str) -> frozenset[str]:
        """Return the URLs of the ready instances that a sandbox or an endpoint forwards requests to."""
        plan = self._protocol.services.plans[name]
        if plan.of is not None:
            found = [self._report_of(one).url for one in self._ready(plan.of)]
        else:
            found = [self._report_of(one).peer_url for one in self._ready(name)]
        return frozenset(url for url in found if url is not None)

    def _report_of(self, instance: PlannedInstance) -> InstanceReport:
        return self._reports.get((instance.service, instance.node_index), InstanceReport())

    def _ready(self, name: str) -> list[PlannedInstance]:
        return [one for one in self._protocol.services.instances_of(name) if one.state is ServiceState.READY]

    def _count(self, name: str) -> tuple[int, int]:
        """Return the number of ready instances and the number wanted."""
        services = self._protocol.services
        return services.ready[name], services.wanted(name)


def _write_records(attempt: AttemptPaths, records: Sequence[ServiceRecord]) -> None:
    try:
        make_private_dirs(attempt.services_dir)
        for record in records:
            name = record.content["service"]
            if record.endpoints.in_file:
                write_atomic(attempt.service_urls(name), "".join(f"{url}\n" for url in record.endpoints.urls))
            write_json(attempt.service_record(name), record.content)
    except OSError as error:  # after a full disk the records are stale; the run continues
        logger.warning("%s could not be written: %s", attempt.services_dir, error)
