"""The proxy of an endpoint, which runs on every node as a service: its command, settings and variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from muster.agent.service_model import ServiceDefinition
from muster.agent.services.sandbox import LOOPBACK, MEMBERS_FILE
from muster.agent.services.templating import variable_part

HTTP_PORT = "http"
MEMBERS_PATH, STATUS_PATH = "/.muster/members", "/.muster/status"  # as in endpoint/proxy.py, which agents do not import
SUFFIX = "-endpoint"  # of the service that is the endpoint of another service


def ports(given: Mapping[str, int | str]) -> dict[str, int | str]:
    return {HTTP_PORT: given.get(HTTP_PORT, "auto")}


def command(agent: str) -> list[str]:
    """Return the command line; the proxy is part of the run's archive, which exists on every node."""
    return [sys.executable, "-I", "-S", agent, "endpoint", "-"]


def settings(
    service: ServiceDefinition, port: int, directory: str, secret: str, node: tuple[int, int]
) -> dict[str, Any]:
    """Return the settings that the proxy reads from its stdin. `node`: its index, and the number of nodes."""
    node_index, nodes = node
    return {
        **(service.endpoint or {}),
        "name": published_name(service.name),
        "host": LOOPBACK,
        "port": port,
        "token": secret,
        "members_file": os.path.join(directory, MEMBERS_FILE),
        "node_index": node_index,
        "proxies": nodes,
    }


def published_name(service: str) -> str:
    """Return the name of the endpoint: that of the service whose instances are its replicas.

    >>> published_name("engine-endpoint"), published_name("chat")
    ('engine', 'chat')
    """
    return service[: -len(SUFFIX)] if service.endswith(SUFFIX) else service


def variable(service: str) -> str:
    """Return the variable that has the endpoint's URL."""
    return f"MUSTER_ENDPOINT_{variable_part(published_name(service))}"
