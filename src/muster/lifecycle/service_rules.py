"""The protocol's part in services: who gets which instances, and what follows when one fails. No I/O, no clock."""

from __future__ import annotations

from muster.lifecycle import end_reasons
from muster.lifecycle import events as m
from muster.lifecycle.config import FAILURE_GRACE_S
from muster.lifecycle.events import Command
from muster.lifecycle.services import PlannedInstance, ServiceState
from muster.lifecycle.shutdown import Shutdown
from muster.lifecycle.states import RunState

SERVES = (RunState.GATHERING, RunState.STARTING, RunState.RUNNING)


class ServiceRules(Shutdown):
    """Services start wherever a node has a rank, whatever Ray is doing; the gate is part of starting the driver."""

    def _begin_services(self, now: float) -> list[Command]:
        begun = self.services.begin(now) if self.state in SERVES else []
        return [m.StartServices(rank, names) for rank, names in begun]

    def _look_at_services(self, event: m.Event, now: float) -> list[Command]:
        """What a node says of a service; and, as time passes, the deadline that was over first."""
        if not self.services.plans or self.state not in SERVES:
            return []  # in between, what fails may fail because of what the run is being mended for
        if isinstance(event, m.ServiceReport):
            moved = self.services.report(event.service, event.rank, event.state, event.words, now)
            if moved is not None and moved.state is ServiceState.FAILED:
                return self._service_failed(moved, end_reasons.service_failed(self.nodes[moved.rank], moved), now)
            return self._maybe_start_driver() if moved is not None else []
        late = self.services.overdue(now) if isinstance(event, m.Tick) else None
        if late is None:
            return []
        plan = self.services.plans[late.service]
        reason = end_reasons.service_late(self.nodes[late.rank], late, plan.deadline)
        self.services.report(late.service, late.rank, ServiceState.FAILED, reason, now)
        return self._service_failed(late, reason, now)

    def _service_failed(self, instance: PlannedInstance, reason: str, now: float) -> list[Command]:
        """The end, by name: without the service the job is not what was asked for."""
        self.services.failure = instance
        return self._finish(end_reasons.failure(self.nodes[instance.rank], "service", reason), now, FAILURE_GRACE_S)
