"""A node's services in one cycle: ports first, so that Ray can know them; then instances, on the leader's word."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from muster.agent.environment import given_variables, job_environment
from muster.agent.job import Identity, Job
from muster.agent.ray.settings import RayOptions, block_size, temp_dir
from muster.agent.services import sandbox, templating
from muster.agent.services.instance import ServiceInstance
from muster.agent.services.launch import Where, endpoints
from muster.agent.services.model import AUTO, SANDBOX, ServiceDefinition, load_services
from muster.agent.services.ports import PortLease, take
from muster.lifecycle.services import ALL, HEAD, ServiceState
from muster.rundir.hosts import host_file_name

logger = logging.getLogger(__name__)


class NodeServices:
    """Made for each cycle; `close` returns when nothing of them is left."""

    def __init__(self, identity: Identity, cycle: int, address: str, token: bytes, tell: Callable[..., None]) -> None:
        """`tell` sends the leader a message: its kind, and its fields by name."""
        self._identity, self._cycle, self._address, self._token = identity, cycle, address, token
        self._tell_leader = tell
        self._services: dict[str, ServiceDefinition] = {}
        self._leases: dict[str, dict[str, PortLease]] = {}  # of services that have not been started
        self._instances: dict[str, ServiceInstance] = {}
        self._members: dict[str, tuple[int, Sequence[str]]] = {}

    async def prepare(self, leads: bool) -> None:
        """Take the ports of what is sure to run here, should this node get a rank."""
        self._services, self._where = await asyncio.get_running_loop().run_in_executor(None, self._load)
        for service in self._services.values():
            if service.scope == ALL or (service.scope == HEAD and leads):
                self._lease(service)

    def _load(self) -> tuple[dict[str, ServiceDefinition], Where]:
        identity = self._identity
        env = job_environment(os.environ, given_variables(identity), identity, self._cycle)
        env["MUSTER_SERVICES_DIR"] = identity.attempt.services_dir
        job = Job.load(identity.run)
        where = Where(self._address, identity.run.agent, self._token, job.workdir, env, pinned_ports(identity, job))
        return load_services(identity.run), where

    def environment(self) -> dict[str, str]:
        """The node's own endpoints, as far as they are known before anything has been started."""
        found = {"MUSTER_SERVICES_DIR": self._identity.attempt.services_dir} if self._services else {}
        for name, leases in self._leases.items():
            ports = {port: lease.number for port, lease in leases.items()}
            url, _ = endpoints(self._services[name], self._address, ports)
            if url is not None:
                found[f"MUSTER_SERVICE_{templating.variable(name)}"] = url
        return found

    def start(self, names: Sequence[str]) -> None:
        for name in names:
            service = self._services.get(name)  # none, where they could not be read: that was told
            if service is None or not self._lease(service):
                continue
            identity, cycle = self._identity, self._cycle
            directory = temp_dir(identity.run.run_id, identity.attempt.number, cycle, identity.rank)
            log = identity.attempt.service_log(name, host_file_name(identity.host), cycle)
            instance = ServiceInstance(
                service, self._where, f"{directory}.service-{name}", log, self._leases.pop(name), self._tell
            )
            instance.members = self._members.get(name)
            self._instances[name] = instance
            instance.start()

    def _lease(self, service: ServiceDefinition) -> bool:
        """Whether it has its ports; a failure is told."""
        if service.name in self._leases:
            return True
        leases: dict[str, PortLease] = {}
        wanted = sandbox.ports(service.ports) if service.kind == SANDBOX else service.ports
        try:
            for port, number in sorted(wanted.items(), key=lambda item: item[1] == AUTO):  # fixed ones first
                leases[port] = take(
                    self._seed(service, port), None if number == AUTO else int(number), self._where.avoid
                )
        except OSError as error:
            for lease in leases.values():
                lease.release()
            self._tell("service", service=service.name, state=ServiceState.FAILED.value, words=str(error))
            return False
        self._leases[service.name] = {port: leases[port] for port in wanted}
        return True

    def _seed(self, service: ServiceDefinition, port: str) -> str:
        """Clients find a sandbox on loopback: there the same port on all nodes is a help."""
        run = self._identity.run.run_id
        same = service.kind == SANDBOX and port == sandbox.HTTP
        return f"{run}/{service.name}/{port}" + ("" if same else f"/{self._identity.rank}")

    async def members_are(self, name: str, version: int, endpoints: Sequence[str]) -> None:
        """Who runs a sandbox; kept for one that is about to start."""
        self._members[name] = version, endpoints
        if name in self._instances:
            await self._instances[name].members_are(version, endpoints)

    async def close(self) -> None:
        await asyncio.gather(*(instance.close() for instance in self._instances.values()))
        for leases in self._leases.values():
            for lease in leases.values():
                lease.release()
        self._leases = {}

    def _tell(self, kind: str, **fields: Any) -> None:
        if fields.get("words"):
            logger.info("service %s: %s: %s", fields["service"], fields["state"], fields["words"])
        self._tell_leader(kind, cycle=self._cycle, **fields)


def pinned_ports(identity: Identity, job: Job) -> range:
    """What --port-base gives to Ray: no service is to stand in it."""
    if not job.ray or job.port_base is None:
        return range(0)
    nodes = job.step_nodes if identity.local else 1  # virtual nodes of one machine follow each other
    options = RayOptions(job.cpus_per_node, None, job.dashboard, job.nodes, identity.local)
    return range(job.port_base, job.port_base + block_size(options) * nodes)
