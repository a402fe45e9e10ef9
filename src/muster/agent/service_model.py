"""Service definitions as the agents read them from the run directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.lifecycle.services import ServicePlan
from muster.rundir import RunPaths
from muster.rundir.node_groups import NodeGroup, ranks_of

SANDBOX, ENDPOINT = "sandbox", "endpoint"  # kinds of services that are part of the run's archive
AUTO = "auto"
NEVER, ON_FAILURE, ALWAYS = "never", "on-failure", "always"


@dataclass(frozen=True)
class ServiceDefinition:
    """A resolved service. Field names are those of the job file."""

    name: str
    command: Sequence[str] | None = None
    kind: str = "command"
    scope: str | int = "all"
    group: str | None = None  # the group of nodes to which the scope applies; None: all nodes
    env: Mapping[str, str] = field(default_factory=dict)
    env_passthrough: Sequence[str] | None = None  # None: everything
    ports: Mapping[str, int | str] = field(default_factory=dict)
    ready: Mapping[str, Any] = field(default_factory=dict)  # one entry, probe kind to argument; empty: see launch.py
    deadline: float = 300.0
    restart: str = ON_FAILURE
    max_restarts: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)  # of a sandbox
    endpoint: Mapping[str, Any] | None = None  # options of an endpoint
    of: str | None = None  # of an endpoint: the service whose instances are its replicas; None: programs name them

    @property
    def has_members(self) -> bool:
        """Whether it runs on every node and forwards requests to members that the leader sends."""
        return self.kind in (SANDBOX, ENDPOINT)

    @classmethod
    def from_record(cls, name: str, record: Mapping[str, Any]) -> ServiceDefinition:
        known = {key: record[key] for key in cls.__dataclass_fields__ if key in record}
        ready = {kind: argument for kind, argument in (record.get("ready") or {}).items() if argument is not None}
        return cls(**{**known, "name": name, "ready": ready})


def load_services(run: RunPaths) -> dict[str, ServiceDefinition]:
    """Return the run's services by name. The file has mode 0600: their environment may hold secrets."""
    with open(run.services, encoding="utf-8") as file:
        records: dict[str, Any] = json.load(file)
    return {name: ServiceDefinition.from_record(name, record) for name, record in records.items()}


def service_variables(run: RunPaths) -> dict[str, str]:
    """Return the environment variables given to any service, for redaction; empty in a run without services."""
    if not os.path.exists(run.services):
        return {}
    return {name: value for service in load_services(run).values() for name, value in service.env.items()}


def service_plans(records: Mapping[str, Any] | None, groups: Sequence[NodeGroup] = ()) -> tuple[ServicePlan, ...]:
    """Return what the state machine needs of each service, from the job's record, which is not secret."""
    return tuple(
        ServicePlan(
            name,
            record["scope"],
            record["gate"],
            record["deadline"],
            ranks_of(record["group"], groups) if record.get("group") else None,
            is_endpoint=record.get("kind") == ENDPOINT,
            of=record.get("of"),
        )
        for name, record in (records or {}).items()
    )
