"""What the agents know of the job's services."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.lifecycle.services import ServicePlan
from muster.rundir import RunPaths

SANDBOX = "sandbox"
AUTO = "auto"
NEVER, ON_FAILURE, ALWAYS = "never", "on-failure", "always"


@dataclass(frozen=True)
class ServiceDefinition:
    """One of them, resolved. Field names are the job file's."""

    name: str
    command: Sequence[str] | None = None
    kind: str = "command"
    scope: str | int = "all"
    env: Mapping[str, str] = field(default_factory=dict)
    env_passthrough: Sequence[str] | None = None  # None: everything
    ports: Mapping[str, int | str] = field(default_factory=dict)
    ready: Mapping[str, Any] = field(default_factory=dict)  # one entry: how, and with what; none: see probes.py
    deadline: float = 300.0
    restart: str = ON_FAILURE
    max_restarts: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)  # of a sandbox

    @classmethod
    def from_record(cls, name: str, record: Mapping[str, Any]) -> ServiceDefinition:
        known = {key: record[key] for key in cls.__dataclass_fields__ if key in record}
        ready = {how: what for how, what in (record.get("ready") or {}).items() if what is not None}
        return cls(**{**known, "name": name, "ready": ready})


def load_services(run: RunPaths) -> dict[str, ServiceDefinition]:
    """From a file of mode 0600: what they are given may be secret."""
    with open(run.services, encoding="utf-8") as file:
        records: dict[str, Any] = json.load(file)
    return {name: ServiceDefinition.from_record(name, record) for name, record in records.items()}


def service_variables(run: RunPaths) -> dict[str, str]:
    """What is given to any of them, for whoever must not show it; nothing where there are none."""
    if not os.path.exists(run.services):
        return {}
    return {name: value for service in load_services(run).values() for name, value in service.env.items()}


def plans_of(records: Mapping[str, Any] | None) -> tuple[ServicePlan, ...]:
    """From the job's own record, which everybody may read: as much as the protocol has to know."""
    return tuple(
        ServicePlan(name, record["scope"], record["gate"], record["deadline"])
        for name, record in (records or {}).items()
    )
