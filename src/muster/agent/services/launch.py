"""How an instance is started: its words, its environment, its stdin, and how it is seen that it is ready."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.agent.services import probes, sandbox, templating
from muster.agent.services.model import SANDBOX, ServiceDefinition
from muster.agent.services.probes import Probe
from muster.rundir.redaction import redact_words

DIRECTORY_VARIABLE = "MUSTER_SERVICE_DIR"


@dataclass(frozen=True)
class Where:
    """What an instance finds on its node."""

    address: str  # that other nodes reach it at
    agent: str  # the run's agent.pyz
    token: bytes  # the run's
    workdir: str
    env: Mapping[str, str]  # the job's
    avoid: Container[int] = ()  # ports that are Ray's


@dataclass(frozen=True)
class Launch:
    """One start."""

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: bytes | None = None


def launch_of(service: ServiceDefinition, where: Where, ports: Mapping[str, int], directory: str) -> Launch:
    """With everything put in that is known only now."""
    values = templating.placeholders(ports, where.address, directory)
    own = {name: templating.filled(value, values) for name, value in service.env.items()}
    if service.kind == SANDBOX:
        given = sandbox.settings(service.settings, ports, where.address, directory, sandbox.token(where.token))
        env = {**templating.passed(where.env, service.env_passthrough or ()), **own}
        return Launch(sandbox.command(where.agent), env, json.dumps(given).encode())
    env = {
        **templating.passed(where.env, service.env_passthrough),
        **templating.port_variables(ports),
        DIRECTORY_VARIABLE: directory,
        **own,
    }
    assert service.command is not None
    return Launch([templating.filled(word, values) for word in service.command], env)


def endpoints(service: ServiceDefinition, address: str, ports: Mapping[str, int]) -> tuple[str | None, str | None]:
    """For clients; and, of a sandbox, for the other nodes."""
    if service.kind == SANDBOX:
        return templating.url_of(service, sandbox.LOOPBACK, ports), sandbox.between(address, ports)
    return templating.url_of(service, address, ports), None


def probe_of(
    service: ServiceDefinition,
    where: Where,
    ports: Mapping[str, int],
    directory: str,
    log: str,
    run: Callable[[Sequence[str]], Awaitable[int]],
) -> Probe:
    """Made just before the start: it tells what the start brings from what was there. `run` runs a probe's command."""
    if service.kind == SANDBOX:
        return _sandbox_probe(ports, directory)
    values = templating.placeholders(ports, where.address, directory)
    main = templating.main_port(list(ports))
    default: tuple[str, Any] = ("", None) if main is None else ("tcp", main)
    how, what = next(iter(service.ready.items()), default)
    if how == "http":
        return probes.http(where.address, ports[main or ""], templating.filled(what, values))
    if how == "tcp":
        return probes.tcp(where.address, ports[what])
    if how == "command":
        argv = [templating.filled(word, values) for word in what]
        return probes.command(lambda: run(argv), " ".join(redact_words(argv)))
    if how == "file":
        return probes.file(os.path.join(directory, templating.filled(what, values)))
    return probes.log(log, what) if how == "log" else probes.running


def _sandbox_probe(ports: Mapping[str, int], directory: str) -> Probe:
    there = probes.file(os.path.join(directory, sandbox.READY_FILE))
    well = probes.http(sandbox.LOOPBACK, ports[sandbox.HTTP], "/health", probes.healthy)

    async def probe() -> str | None:
        return await there() or await well()

    return probe
