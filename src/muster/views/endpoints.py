"""The load of an endpoint, of all nodes together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from muster.views.json_values import as_count, as_dicts, as_text

MAX_REPLICAS_NAMED = 16


@dataclass(frozen=True)
class ReplicaLoad:
    """One replica, as all proxies together see it."""

    address: str
    proxies: int  # that know it
    ready: int  # proxies that send it requests
    states: str  # its other states
    weights_versions: str
    outstanding: int
    requests: int
    failed: int


@dataclass(frozen=True)
class EndpointLoad:
    """The last load that the proxies of an endpoint reported."""

    outstanding: int
    waiting: int
    requests: int
    failed: int
    replicas: tuple[ReplicaLoad, ...]

    @property
    def ready(self) -> int:
        """The number of replicas that all proxies send requests."""
        return sum(replica.ready == replica.proxies for replica in self.replicas)


def endpoint_load(load: dict[str, Any]) -> EndpointLoad:
    """Return the load of an endpoint from its part of the status."""
    totals = {name: int(as_count(load.get(name))) for name in ("outstanding", "waiting", "requests", "failed")}
    return EndpointLoad(**totals, replicas=tuple(map(_replica, as_dicts(load.get("replicas")))))


def _replica(entry: dict[str, Any]) -> ReplicaLoad:
    names = ("proxies", "ready", "outstanding", "requests", "failed")
    counts = {name: int(as_count(entry.get(name))) for name in names}
    states = ", ".join(sorted(state for state in _texts(entry.get("states")) if state != "ready"))
    versions = ", ".join(sorted(_texts(entry.get("weights_versions"))))
    return ReplicaLoad(urlsplit(as_text(entry.get("url"))).netloc, states=states, weights_versions=versions, **counts)


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def endpoint_line(load: EndpointLoad) -> str:
    """Return the totals of an endpoint.

    >>> endpoint_line(EndpointLoad(3, 0, 120, 2, ()))
    'replicas: 0 of 0 ready; 3 requests outstanding, 120 in total, 2 failed'
    """
    waiting = f", {load.waiting} waiting for a replica" if load.waiting else ""
    failed = f", {load.failed} failed" if load.failed else ""
    return (
        f"replicas: {load.ready} of {len(load.replicas)} ready; {load.outstanding} requests outstanding{waiting}, "
        f"{load.requests} in total{failed}"
    )


def replica_line(replica: ReplicaLoad) -> str:
    """Return the state and the load of a replica."""
    others = replica.proxies - replica.ready
    state = f"{replica.states} at {others} of {replica.proxies} nodes" if others else "ready"
    version = f", weights version {replica.weights_versions}" if replica.weights_versions else ""
    failed = f", {replica.failed} failed" if replica.failed else ""
    return (
        f"{replica.address}: {state}{version}, {replica.outstanding} outstanding, {replica.requests} requests{failed}"
    )
