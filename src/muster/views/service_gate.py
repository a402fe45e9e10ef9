"""The gate before the driver: which services it waits for, and on which nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from muster.lifecycle.services import ALL, ANY, HEAD, ServicePlan
from muster.views.record import record, whole

HOLDS_NOBODY = ("ready", "ended")  # one that was ready and ended well is done


@dataclass(frozen=True)
class Gate:
    """The services that the driver waits for, each with its scope; `nodes` are active in a cycle."""

    scopes: dict[str, str | int]
    nodes: int
    _known: dict[int, tuple[str, ...]] = field(default_factory=dict, compare=False)  # asked at every event

    def on(self, logical: int | None) -> tuple[str, ...]:
        """Those that run on the node of this rank in the cycle: docs/services.md says who gets which.

        >>> Gate({"sandbox": "all", "judge": 1, "web": "head"}, nodes=4).on(3)
        ('sandbox', 'judge')
        """
        if logical is None or not self.scopes:
            return ()
        if logical not in self._known:
            plans = [ServicePlan(name, scope) for name, scope in self.scopes.items()]
            self._known[logical] = tuple(plan.name for plan in plans if plan.runs_on(logical, self.nodes))
        return self._known[logical]


OPEN = Gate({}, 0)


def gate_of(job: dict[str, Any]) -> Gate:
    """As the job has it; one that is not said to be beside the driver holds it."""
    services = {name: record(entry) for name, entry in record(job.get("services")).items()}
    asked = {name: entry.get("scope", ALL) for name, entry in services.items() if entry.get("gate", True)}
    known = {name: scope for name, scope in asked.items() if scope in (ALL, HEAD, ANY) or whole(scope) is not None}
    return Gate(known, whole(job.get("nodes")) or 0)
