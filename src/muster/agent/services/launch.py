"""Command, environment, stdin and readiness probe of one start of a service instance."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.agent.service_model import ENDPOINT, SANDBOX, ServiceDefinition
from muster.agent.services import endpoint, probes, sandbox, templating
from muster.agent.services.probes import Probe
from muster.rundir.redaction import redact_words
from muster.rundir.tokens import derive_endpoint_token

DIRECTORY_VARIABLE = "MUSTER_SERVICE_DIR"


@dataclass(frozen=True)
class InstanceContext:
    """The properties of the node and the run that an instance depends on."""

    address: str  # where other nodes reach this one
    agent: str  # path of the run's agent.pyz
    token: bytes  # of the run
    workdir: str
    env: Mapping[str, str]  # of the job
    avoid: Container[int] = ()  # ports reserved for Ray
    node: tuple[int, int] = (0, 1)  # its index, and the number of nodes of the job


@dataclass(frozen=True)
class InstanceFiles:
    """The files of one instance."""

    directory: str  # emptied before each start
    log: str


@dataclass(frozen=True)
class InstanceLaunch:
    """The command and the environment of one start."""

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: bytes | None = None


def build_launch(
    service: ServiceDefinition, context: InstanceContext, ports: Mapping[str, int], directory: str
) -> InstanceLaunch:
    """Fill in ports, address and directory, which are known only now."""
    values = templating.placeholder_values(ports, context.address, directory)
    own = {name: templating.fill(value, values) for name, value in service.env.items()}
    if service.kind == SANDBOX:
        given = sandbox.settings(service.settings, ports, context.address, directory, sandbox.token(context.token))
        env = {**templating.inherited_environment(context.env, service.env_passthrough or ()), **own}
        return InstanceLaunch(sandbox.command(context.agent), env, json.dumps(given).encode())
    if service.kind == ENDPOINT:
        secret = derive_endpoint_token(context.token)
        given = endpoint.settings(service, ports[endpoint.HTTP_PORT], directory, secret, context.node)
        env = templating.inherited_environment(context.env, ())
        return InstanceLaunch(endpoint.command(context.agent), env, json.dumps(given).encode())
    env = {
        **templating.inherited_environment(context.env, service.env_passthrough),
        **templating.port_variables(ports),
        DIRECTORY_VARIABLE: directory,
        **own,
    }
    assert service.command is not None
    return InstanceLaunch([templating.fill(word, values) for word in service.command], env)


def endpoints(service: ServiceDefinition, address: str, ports: Mapping[str, int]) -> tuple[str | None, str | None]:
    """Return the URL for clients and, for a sandbox, the URL for its peers on other nodes."""
    if service.kind == SANDBOX:
        return templating.endpoint_url(service, sandbox.LOOPBACK, ports), sandbox.peer_url(address, ports)
    address = sandbox.LOOPBACK if service.kind == ENDPOINT else address
    return templating.endpoint_url(service, address, ports), None


def wanted_ports(service: ServiceDefinition) -> Mapping[str, int | str]:
    """Return the ports that the service listens on, by name."""
    if service.kind == SANDBOX:
        return sandbox.ports(service.ports)
    return endpoint.ports(service.ports) if service.kind == ENDPOINT else service.ports


@dataclass(frozen=True)
class MemberServer:
    """How the agent asks a service with members on its node."""

    port_name: str
    members_path: str  # of the version of the members that it serves
    load_path: str
    token: str | None = None

    @classmethod
    def of(cls, service: ServiceDefinition, run_token: bytes) -> MemberServer:
        if service.kind == ENDPOINT:
            secret = derive_endpoint_token(run_token)
            return cls(endpoint.HTTP_PORT, endpoint.MEMBERS_PATH, endpoint.STATUS_PATH, secret)
        return cls(sandbox.HTTP_PORT, "/gateway", "/load")

    def serves(self, answer: Mapping[str, Any] | None, version: int) -> bool:
        """Return whether it serves this version, and no request is left at a replica that is not part of it."""
        return answer is not None and answer.get("version") == version and answer.get("drained", True) is True


def build_probe(
    service: ServiceDefinition,
    context: InstanceContext,
    ports: Mapping[str, int],
    directory: str,
    log: str,
    run: Callable[[Sequence[str]], Awaitable[int]],
) -> Probe:
    """Return the readiness probe, to be made just before the start, whose effect it detects; `run` runs a command."""
    if service.kind == SANDBOX:
        return _sandbox_probe(ports, directory)
    if service.kind == ENDPOINT:
        return probes.tcp(sandbox.LOOPBACK, ports[endpoint.HTTP_PORT])
    values = templating.placeholder_values(ports, context.address, directory)
    main = templating.main_port(list(ports))
    default: tuple[str, Any] = ("", None) if main is None else ("tcp", main)
    kind, argument = next(iter(service.ready.items()), default)
    if kind == "http":
        return probes.http(context.address, ports[main or ""], templating.fill(argument, values))
    if kind == "tcp":
        return probes.tcp(context.address, ports[argument])
    if kind == "command":
        argv = [templating.fill(word, values) for word in argument]
        return probes.command(lambda: run(argv), " ".join(redact_words(argv)))
    if kind == "file":
        return probes.file(os.path.join(directory, templating.fill(argument, values)))
    return probes.log(log, argument) if kind == "log" else probes.running


def _sandbox_probe(ports: Mapping[str, int], directory: str) -> Probe:
    ready_file = probes.file(os.path.join(directory, sandbox.READY_FILE))
    health = probes.http(sandbox.LOOPBACK, ports[sandbox.HTTP_PORT], "/health", probes.check_healthy)

    async def probe() -> str | None:
        return await ready_file() or await health()

    return probe
