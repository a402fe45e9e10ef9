"""The services of a run in its state machine: start them on new nodes, and end the run when one of them fails."""

from __future__ import annotations

from itertools import groupby

from muster.lifecycle import end_reasons
from muster.lifecycle.config import RunConfig
from muster.lifecycle.events import RunOutcome, ServiceReport, StartServices
from muster.lifecycle.node_table import NodeTable
from muster.lifecycle.services import PlannedInstance, Services, ServiceState
from muster.lifecycle.states import SERVING_STATES, RunState
from muster.lifecycle.transition import TransitionBuilder


class ServiceRules:
    """Applies events to the services; the job cannot run as specified without one, so a failure is an outcome."""

    def __init__(self, config: RunConfig, services: Services, table: NodeTable, results: TransitionBuilder) -> None:
        self._config, self._services, self._table, self._results = config, services, table, results

    def start(self, now: float, cycle: int, state: RunState) -> None:
        """Start services on every node that got a rank, independent of Ray; the driver waits for the gated ones.

        Their places depend on the number of active nodes, which an elastic run knows when the round has closed.
        """
        size_unknown = self._config.elastic and state is RunState.GATHERING
        if not self._services.plans or state not in SERVING_STATES or size_unknown:
            return
        started = self._services.start_on_new_nodes(now)
        self._results.service_changes += started
        for node_index, instances in groupby(started, key=lambda instance: instance.node_index):
            names = tuple(instance.service for instance in instances)
            self._results.commands.append(StartServices(node_index, names, cycle))

    def report(self, event: ServiceReport, now: float) -> RunOutcome | None:
        """Apply a node's report; return the outcome if the instance has failed."""
        changed = self._services.report(event.service, event.node_index, event.state, event.detail, now)
        if changed is None:
            return None
        self._results.service_changes.append(changed)
        if changed.state is not ServiceState.FAILED:
            return None
        return self._failed(changed, end_reasons.service_failed(self._table.nodes[changed.node_index], changed))

    def check_deadlines(self, now: float) -> RunOutcome | None:
        """Fail the instance whose deadline passed first, and return the outcome."""
        late = self._services.overdue(now)
        if late is None:
            return None
        deadline = self._services.plans[late.service].deadline
        reason = end_reasons.service_late(self._table.nodes[late.node_index], late, deadline)
        failed = self._services.report(late.service, late.node_index, ServiceState.FAILED, reason, now)
        assert failed is not None
        self._results.service_changes.append(failed)
        return self._failed(late, reason)

    def _failed(self, instance: PlannedInstance, reason: str) -> RunOutcome:
        """Name the service that ends the run."""
        self._results.service_failure = instance
        return end_reasons.failure(self._table.nodes[instance.node_index], "service", reason)
