"""The gate before the driver: which services it waits for, and on which nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from muster.views.record import record, whole


@dataclass(frozen=True)
class Gate:
    """The services that the driver waits for, each with its scope; `nodes` are active in a cycle."""

    scopes: dict[str, Any]
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
            self._known[logical] = tuple(name for name, scope in self.scopes.items() if self._runs(scope, logical))
        return self._known[logical]

    def _runs(self, scope: Any, logical: int) -> bool:
        if scope == "head":
            return logical == 0
        wanted = {"all": self.nodes, "any": 1}.get(scope, 0) if isinstance(scope, str) else scope
        return isinstance(wanted, int) and logical >= self.nodes - wanted


OPEN = Gate({}, 0)


def gate_of(job: dict[str, Any]) -> Gate:
    """As the job has it; one that is not said to be beside the driver holds it."""
    services = {name: record(entry) for name, entry in record(job.get("services")).items()}
    scopes = {name: entry.get("scope", "all") for name, entry in services.items() if entry.get("gate", True)}
    return Gate(scopes, whole(job.get("nodes")) or 0)
