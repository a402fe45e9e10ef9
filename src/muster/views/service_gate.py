"""The services that the driver waits for, and the nodes they run on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from muster.lifecycle.services import ALL, ANY, HEAD, ServicePlan
from muster.views.json_values import as_dict, as_int

PASSED_STATES = ("ready", "ended")  # a service that was ready and ended successfully no longer holds the driver


@dataclass(frozen=True)
class Gate:
    """The services that the driver waits for, each with its scope, and the number of active nodes in a cycle."""

    scopes: dict[str, str | int]
    nodes: int
    _cache: dict[int, tuple[str, ...]] = field(default_factory=dict, compare=False)  # queried at every event

    def services_on(self, logical_rank: int | None) -> tuple[str, ...]:
        """Return the services on the node with this rank in the cycle; docs/explanation/services.md defines the scopes.

        >>> Gate({"sandbox": "all", "judge": 1, "web": "head"}, nodes=4).services_on(3)
        ('sandbox', 'judge')
        """
        if logical_rank is None or not self.scopes:
            return ()
        if logical_rank not in self._cache:
            plans = [ServicePlan(name, scope) for name, scope in self.scopes.items()]
            self._cache[logical_rank] = tuple(plan.name for plan in plans if plan.runs_on(logical_rank, self.nodes))
        return self._cache[logical_rank]


OPEN = Gate({}, 0)


def gate_of(job: dict[str, Any]) -> Gate:
    """Return the gate of a job; a service without `gate` in its record holds the driver."""
    services = {name: as_dict(entry) for name, entry in as_dict(job.get("services")).items()}
    asked = {name: entry.get("scope", ALL) for name, entry in services.items() if entry.get("gate", True)}
    known = {name: scope for name, scope in asked.items() if scope in (ALL, HEAD, ANY) or as_int(scope) is not None}
    return Gate(known, as_int(job.get("nodes")) or 0)
