"""A node's services in one cycle: ports are leased before Ray starts; instances start when the leader requests it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from muster.agent.control.codec import Message
from muster.agent.control.messages import ServiceMembers, ServiceServes, ServiceStatus
from muster.agent.environment import node_environment
from muster.agent.job import Identity, Job
from muster.agent.private_dir import avoid_occupied
from muster.agent.ray.settings import RayOptions, block_size, temp_dir
from muster.agent.run_directory import retried
from muster.agent.service_model import AUTO, ENDPOINT, ServiceDefinition, load_services
from muster.agent.services import endpoint, sandbox, templating
from muster.agent.services.instance import ServiceInstance
from muster.agent.services.launch import InstanceContext, InstanceFiles, endpoints, wanted_ports
from muster.agent.services.members import NO_MEMBERS, MemberList, updated
from muster.lifecycle.services import ALL, HEAD, ServiceState
from muster.ports.socket_leases import PortLease, take
from muster.rundir.hosts import host_file_name
from muster.rundir.node_groups import GROUP_VARIABLE, group_of

logger = logging.getLogger(__name__)


class NodeServices:
    """The service instances of one node in one cycle."""

    def __init__(
        self, identity: Identity, cycle: int, address: str, token: bytes, send: Callable[[Message], None]
    ) -> None:
        """`send` sends a message to the leader."""
        self._identity, self._cycle, self._address, self._token = identity, cycle, address, token
        self._send = send
        self._services: dict[str, ServiceDefinition] = {}
        self._leases: dict[str, dict[str, PortLease]] = {}  # of services that are not started yet
        self._instances: dict[str, ServiceInstance] = {}
        self._members: dict[str, MemberList] = {}

    async def prepare(self, leads: bool) -> None:
        """Lease the ports of all services that run here if this node gets a rank."""
        self._services, self._context, self._group = await retried(self._identity.run.services, self._load)
        for service in self._services.values():
            group = service.group in (None, self._group)
            if (service.scope == ALL and group) or (service.scope == HEAD and leads and service.group is None):
                self._lease(service)
        self._context = replace(self._context, env={**self._context.env, **self._endpoint_variables()})

    def _load(self) -> tuple[dict[str, ServiceDefinition], InstanceContext, str | None]:
        identity = self._identity
        env = node_environment(identity, self._cycle)
        env["MUSTER_SERVICES_DIR"] = identity.attempt.services_dir
        job = Job.load(identity.run)
        group = group_of(identity.node_index, job.groups)
        if group is not None:
            env[GROUP_VARIABLE] = group.name
        context = InstanceContext(
            self._address,
            identity.run.agent,
            self._token,
            job.workdir,
            env,
            pinned_ports(identity, job),
            (identity.node_index, job.nodes),
        )
        return load_services(identity.run), context, group.name if group else None

    def environment(self) -> dict[str, str]:
        """Return variables with this node's endpoints, as far as they are known before the start."""
        found = {"MUSTER_SERVICES_DIR": self._identity.attempt.services_dir} if self._services else {}
        for name, url in self._leased_urls().items():
            if self._services[name].kind != ENDPOINT:
                found[f"MUSTER_SERVICE_{templating.variable_part(name)}"] = url
        return {**found, **self._endpoint_variables()}

    def _endpoint_variables(self) -> dict[str, str]:
        """Return the URLs of this node's endpoints, which services need as well."""
        urls = self._leased_urls().items()
        return {endpoint.variable(name): url for name, url in urls if self._services[name].kind == ENDPOINT}

    def _leased_urls(self) -> dict[str, str]:
        """Return the URLs of services that are not started yet, by name."""
        found = {}
        for name, leases in self._leases.items():
            url, _ = endpoints(
                self._services[name], self._address, {port: lease.number for port, lease in leases.items()}
            )
            if url is not None:
                found[name] = url
        return found

    def start(self, names: Sequence[str]) -> None:
        for name in names:
            service = self._services.get(name)  # None if the services could not be read, which was reported
            if service is None or not self._lease(service):
                continue
            identity, cycle = self._identity, self._cycle
            usual = temp_dir(identity.run.run_id, identity.attempt.number, cycle, identity.node_index)
            directory = avoid_occupied(usual)
            log = identity.attempt.service_log(name, host_file_name(identity.host), cycle)
            files = InstanceFiles(f"{directory}.service-{name}", log)
            leases = self._leases.pop(name)
            instance = ServiceInstance(service, self._context, files, leases, self._send, cycle)
            if (members := self._members.get(name)) is not None:
                instance.members = members.version, sorted(members.endpoints)
            self._instances[name] = instance
            instance.start()

    def _lease(self, service: ServiceDefinition) -> bool:
        """Lease the service's ports; report a failure to the leader and return False."""
        if service.name in self._leases:
            return True
        leases: dict[str, PortLease] = {}
        wanted = wanted_ports(service)
        try:
            for port, number in sorted(wanted.items(), key=lambda item: item[1] == AUTO):  # fixed ones first
                leases[port] = take(
                    self._seed(service, port), None if number == AUTO else int(number), self._context.avoid
                )
        except OSError as error:
            for lease in leases.values():
                lease.release()
            logger.info("service %s: %s: %s", service.name, ServiceState.FAILED.value, error)
            self._send(ServiceStatus(service.name, ServiceState.FAILED, str(error), None, None, 0, self._cycle))
            return False
        self._leases[service.name] = {port: leases[port] for port in wanted}
        return True

    def _seed(self, service: ServiceDefinition, port: str) -> str:
        """Return the seed of the port choice; what is reached on loopback gets the same port on all nodes."""
        run = self._identity.run.run_id
        same = service.has_members and port == sandbox.HTTP_PORT
        return f"{run}/{service.name}/{port}" + ("" if same else f"/{self._identity.node_index}")

    async def set_members(self, message: ServiceMembers) -> None:
        """Give a sandbox or an endpoint its current members; they are kept for an instance that starts later."""
        name = message.service
        members = updated(self._members.get(name), message)
        if members is None:
            logger.warning("service %s: version %s of its members is not known here", name, message.base)
            self._send(ServiceServes(name, NO_MEMBERS, self._cycle))
            return
        self._members[name] = members
        if name in self._instances:
            await self._instances[name].set_members(members.version, sorted(members.endpoints))

    async def close(self) -> None:
        """Stop all instances and release all ports; return when no process is left."""
        await asyncio.gather(*(instance.close() for instance in self._instances.values()))
        for leases in self._leases.values():
            for lease in leases.values():
                lease.release()
        self._leases = {}


def pinned_ports(identity: Identity, job: Job) -> range:
    """Return the ports that --port-base reserves for Ray; services avoid them."""
    if not job.ray or job.port_base is None:
        return range(0)
    nodes = job.step_nodes if identity.local else 1  # virtual nodes of one machine follow each other
    options = RayOptions(job.cpus_per_node, None, job.dashboard, job.nodes, identity.local)
    return range(job.port_base, job.port_base + block_size(options) * nodes)
