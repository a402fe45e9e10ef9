"""Services in the state machine: on which nodes they start, and what their failure causes. No I/O, no clock."""

from __future__ import annotations

from muster.lifecycle import end_reasons
from muster.lifecycle import events as m
from muster.lifecycle.config import FAILURE_GRACE_S
from muster.lifecycle.events import Command
from muster.lifecycle.services import PlannedInstance, ServiceState
from muster.lifecycle.shutdown import Shutdown
from muster.lifecycle.states import RunState

SERVING_STATES = (RunState.GATHERING, RunState.STARTING, RunState.RUNNING)


class ServiceRules(Shutdown):
    """Starts services on every node that has a rank, independent of Ray; the driver waits for the gated ones."""

    def _start_services(self, now: float) -> list[Command]:
        started = self.services.start_on_new_nodes(now) if self.state in SERVING_STATES else []
        return [m.StartServices(rank, names) for rank, names in started]

    def _check_services(self, event: m.Event, now: float) -> list[Command]:
        """Handle a node's report of a service; on a tick, fail the instance whose deadline passed first."""
        if not self.services.plans or self.state not in SERVING_STATES:
            return []  # in other states a service may fail because of the failure that the run recovers from
        if isinstance(event, m.ServiceReport):
            changed = self.services.report(event.service, event.rank, event.state, event.detail, now)
            if changed is not None and changed.state is ServiceState.FAILED:
                return self._service_failed(changed, end_reasons.service_failed(self.nodes[changed.rank], changed), now)
            return self._maybe_start_driver() if changed is not None else []
        late = self.services.overdue(now) if isinstance(event, m.Tick) else None
        if late is None:
            return []
        plan = self.services.plans[late.service]
        reason = end_reasons.service_late(self.nodes[late.rank], late, plan.deadline)
        self.services.report(late.service, late.rank, ServiceState.FAILED, reason, now)
        return self._service_failed(late, reason, now)

    def _service_failed(self, instance: PlannedInstance, reason: str, now: float) -> list[Command]:
        """End the run, naming the service: the job cannot run as specified without it."""
        self.services.failure = instance
        return self._finish(end_reasons.failure(self.nodes[instance.rank], "service", reason), now, FAILURE_GRACE_S)
