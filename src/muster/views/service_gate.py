"""The services that the driver waits for, and the nodes they run on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.lifecycle.services import ALL, ANY, HEAD, ServicePlan
from muster.rundir.node_groups import NodeGroup, groups_of, ranks_of
from muster.views.json_values import as_dict, as_dicts, as_int, as_text

PASSED_STATES = ("ready", "ended")  # a service that was ready and ended successfully no longer holds the driver


@dataclass(frozen=True)
class Gate:
    """The services that the driver waits for, and the number of active nodes in a cycle."""

    plans: tuple[ServicePlan, ...]
    nodes: int
    _cache: dict[int, tuple[str, ...]] = field(default_factory=dict, compare=False)  # queried at every event

    def services_on(self, logical_rank: int | None) -> tuple[str, ...]:
        """Return the services on the node with this rank in the cycle; docs/explanation/services.md defines the scopes.

        >>> Gate((ServicePlan("sandbox"), ServicePlan("judge", 1), ServicePlan("web", "head")), nodes=4).services_on(3)
        ('sandbox', 'judge')
        """
        if logical_rank is None or not self.plans:
            return ()
        if logical_rank not in self._cache:
            on_this = (plan.name for plan in self.plans if plan.runs_on(logical_rank, self.nodes))
            self._cache[logical_rank] = tuple(on_this)
        return self._cache[logical_rank]


OPEN = Gate((), 0)


def gate_of(job: dict[str, Any]) -> Gate:
    """Return the gate of a job; a service without `gate` in its record holds the driver."""
    services = {name: as_dict(entry) for name, entry in as_dict(job.get("services")).items()}
    groups = groups_of(group for group in as_dicts(job.get("groups")) if as_int(group.get("nodes")) and "name" in group)
    plans = (
        ServicePlan(name, entry.get("scope", ALL), ranks=_ranks(as_text(entry.get("group")), groups))
        for name, entry in services.items()
        if entry.get("gate", True)
    )
    known = (plan for plan in plans if plan.scope in (ALL, HEAD, ANY) or as_int(plan.scope) is not None)
    return Gate(tuple(known), as_int(job.get("nodes")) or 0)


def _ranks(name: str, groups: Sequence[NodeGroup]) -> range | None:
    return ranks_of(name, groups) if name in [group.name for group in groups] else None
