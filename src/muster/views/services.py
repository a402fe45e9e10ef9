"""The services of a run: how many of each are ready, what every instance does, and how busy the sandboxes are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from muster.views.record import AttemptRecord, RunRecord, record, records, whole, words

COUNTS = ("slots", "running", "queued", "sessions", "executed", "failed")


@dataclass(frozen=True)
class Load:
    """What a sandbox said of itself last (its GET /load): slots, and how many of them run something."""

    slots: int = 0
    running: int = 0
    queued: int = 0
    sessions: int = 0
    executed: int = 0
    failed: int = 0
    rate: float = 0.0  # executions per second

    @property
    def share(self) -> float:
        """How much of it is taken, from 0 to 1."""
        return min(1.0, self.running / self.slots) if self.slots else float(self.running > 0)


@dataclass(frozen=True)
class InstanceView:
    """One service on one node: its state as the leader knew it last."""

    rank: int | None
    host: str
    state: str
    url: str
    restarts: int
    reason: str  # why it is not ready, or a sandbox's endpoint not as it should be, where that was told
    load: Load | None


@dataclass(frozen=True)
class ServiceView:
    """One service in the newest cycle."""

    name: str
    wanted: int
    gate: bool
    instances: tuple[InstanceView, ...]

    @property
    def ready(self) -> int:
        return sum(instance.state == "ready" for instance in self.instances)

    @property
    def restarts(self) -> int:
        return sum(instance.restarts for instance in self.instances)

    @property
    def loads(self) -> list[tuple[str, Load]]:
        """Of a sandbox, by node."""
        return [(instance.host, instance.load) for instance in self.instances if instance.load is not None]


def services(run: RunRecord) -> list[ServiceView]:
    """Those of the newest attempt, as the job and the status name them.

    A leader forgets the instances of nodes that are told to stop: then the events of the cycle say how each was last.
    """
    if not run.attempts:
        return []
    attempt = run.attempts[-1]
    asked, published = record(run.job.get("services")), record(attempt.status.get("services"))
    told = _told(attempt)
    return [
        _service(name, record(asked.get(name)), record(published.get(name)), told.get(name, {}))
        for name in dict.fromkeys([*published, *asked, *told])
    ]


def _service(name: str, asked: dict[str, Any], entry: dict[str, Any], told: dict[int, dict[str, Any]]) -> ServiceView:
    listed = records(entry.get("instances")) or list(told.values())
    reasons = {rank: words(fields.get("reason")) for rank, fields in told.items() if fields.get("state") != "ready"}
    instances = tuple(_instance(one, reasons.get(whole(one.get("rank")) or 0, "")) for one in listed)
    gate = entry.get("gate", asked.get("gate", True))
    wanted = whole(entry.get("wanted"))
    return ServiceView(name, len(instances) if wanted is None else wanted, bool(gate), instances)


def _told(attempt: AttemptRecord) -> dict[str, dict[int, dict[str, Any]]]:
    """The last event of every instance of the newest cycle, by service and rank."""
    cycle = max((event.cycle for event in attempt.events), default=0)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for event in attempt.events:
        name = words(event.fields.get("service"))
        if event.name == "service" and event.cycle == cycle and event.rank is not None and name:
            found.setdefault(name, {})[event.rank] = event.fields
    return {name: dict(sorted(ranks.items())) for name, ranks in found.items()}


def _instance(entry: dict[str, Any], reason: str) -> InstanceView:
    load = record(entry.get("load"))
    return InstanceView(
        whole(entry.get("rank")),
        words(entry.get("host")),
        words(entry.get("state")),
        words(entry.get("url")),
        whole(entry.get("restarts")) or 0,
        reason or words(load.get("gateway_problem")),
        _load(load) if load else None,
    )


def _load(entry: dict[str, Any]) -> Load:
    slots, running, queued, sessions, executed, failed = (int(_count(entry.get(name))) for name in COUNTS)
    return Load(slots, running, queued, sessions, executed, failed, _count(entry.get("rate")))


def _count(value: Any) -> float:
    """A number that is not below nothing; anything else counts as none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number and 0 <= value < 1e15 else 0.0


def total(loads: Iterable[Load]) -> Load:
    """All of them as one."""
    loads = list(loads)
    sums = (sum(getattr(load, name) for load in loads) for name in Load.__dataclass_fields__)
    return Load(*sums)
