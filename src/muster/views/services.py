"""The services of a run: ready instances, the state of each, and the load of sandboxes and endpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from muster.views.endpoints import EndpointLoad, endpoint_load
from muster.views.json_values import as_count, as_dict, as_dicts, as_int, as_text
from muster.views.record import AttemptRecord, RunRecord

COUNTS = ("slots", "running", "queued", "sessions", "executed", "failed")


@dataclass(frozen=True)
class Load:
    """The last load that a sandbox reported (its GET /load)."""

    slots: int = 0
    running: int = 0
    queued: int = 0
    sessions: int = 0
    executed: int = 0
    failed: int = 0
    rate: float = 0.0  # executions per second

    @property
    def share(self) -> float:
        """Return the share of busy slots, from 0 to 1."""
        return min(1.0, self.running / self.slots) if self.slots else float(self.running > 0)


@dataclass(frozen=True)
class InstanceView:
    """One service on one node, in the last state known to the leader."""

    node_index: int | None
    host: str
    state: str
    url: str
    restarts: int
    reason: str  # why it is not ready, or what is wrong with a sandbox's endpoint; empty where unknown
    load: Load | None


@dataclass(frozen=True)
class ServiceView:
    """One service in the newest cycle."""

    name: str
    wanted: int
    gate: bool
    instances: tuple[InstanceView, ...]
    endpoint: EndpointLoad | None = None  # of an endpoint, once a proxy has reported its load

    @property
    def ready(self) -> int:
        return sum(instance.state == "ready" for instance in self.instances)

    @property
    def restarts(self) -> int:
        return sum(instance.restarts for instance in self.instances)

    @property
    def loads(self) -> list[tuple[str, Load]]:
        """Return the loads of a sandbox by node."""
        return [(instance.host, instance.load) for instance in self.instances if instance.load is not None]


def services(run: RunRecord) -> list[ServiceView]:
    """Return the services of the newest attempt, as named by the job and the status.

    A leader drops the instances of nodes it stops; their last state then comes from the events of the cycle.
    """
    if not run.attempts:
        return []
    attempt = run.attempts[-1]
    asked, published = as_dict(run.job.get("services")), as_dict(attempt.status.get("services"))
    events = _last_events(attempt)
    return [
        _service(name, as_dict(asked.get(name)), as_dict(published.get(name)), events.get(name, {}))
        for name in dict.fromkeys([*published, *asked, *events])
    ]


def _service(name: str, asked: dict[str, Any], entry: dict[str, Any], events: dict[int, dict[str, Any]]) -> ServiceView:
    listed = as_dicts(entry.get("instances")) or list(events.values())
    reasons = {
        node_index: as_text(fields.get("reason"))
        for node_index, fields in events.items()
        if fields.get("state") != "ready"
    }
    endpoint = None
    if entry.get("kind") == "endpoint":
        load = as_dict(entry.get("load"))
        endpoint = endpoint_load(load) if load else None
    instances = tuple(_instance(one, reasons.get(as_int(one.get("rank")) or 0, "")) for one in listed)
    gate = entry.get("gate", asked.get("gate", True))
    wanted = as_int(entry.get("wanted"))
    return ServiceView(name, len(instances) if wanted is None else wanted, bool(gate), instances, endpoint)


def _last_events(attempt: AttemptRecord) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the last event of every instance in the newest cycle, by service and node index."""
    cycle = max((event.cycle for event in attempt.events), default=0)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for event in attempt.events:
        name = as_text(event.fields.get("service"))
        if event.name == "service" and event.cycle == cycle and event.node_index is not None and name:
            found.setdefault(name, {})[event.node_index] = event.fields
    return {name: dict(sorted(node_indexes.items())) for name, node_indexes in found.items()}


def _instance(entry: dict[str, Any], reason: str) -> InstanceView:
    load = as_dict(entry.get("load"))
    return InstanceView(
        as_int(entry.get("rank")),
        as_text(entry.get("host")),
        as_text(entry.get("state")),
        as_text(entry.get("url")),
        as_int(entry.get("restarts")) or 0,
        reason or as_text(load.get("gateway_problem")),
        _load(load) if load else None,
    )


def _load(entry: dict[str, Any]) -> Load:
    slots, running, queued, sessions, executed, failed = (int(as_count(entry.get(name))) for name in COUNTS)
    return Load(slots, running, queued, sessions, executed, failed, as_count(entry.get("rate")))


def total(loads: Iterable[Load]) -> Load:
    """Return the sum of the loads."""
    loads = list(loads)
    sums = (sum(getattr(load, name) for load in loads) for name in Load.__dataclass_fields__)
    return Load(*sums)
