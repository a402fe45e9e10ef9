"""Services under any order of events: the gate's count is right, and instances are on the right nodes."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from tests.lifecycle.any_order import AGO, ANSWERS, MAX_NODES, NODE_INDEXES, RECOVERY, AnyOrder

from muster.lifecycle.events import ServiceReport, StartDriver, StartServices
from muster.lifecycle.services import ServicePlan, ServiceState
from muster.lifecycle.state_machine import RunConfig
from muster.lifecycle.states import SERVING_STATES

SCOPES = st.sampled_from(["all", "head", "any", 1, 2])
SERVICES = st.lists(st.tuples(SCOPES, st.booleans(), st.sampled_from([20.0, 200.0])), min_size=1, max_size=3)


class Served(AnyOrder):
    """Feeds the same events, and reports of services that may not exist."""

    @initialize(
        nodes=st.integers(1, MAX_NODES),
        spares=st.integers(0, 2),
        ray=st.booleans(),
        recovery=RECOVERY,
        answers=ANSWERS,
        services=SERVICES,
    )
    def begin(  # type: ignore[override]
        self, nodes: int, spares: int, ray: bool, recovery: dict[str, Any], answers: list[bool], services: Any
    ) -> None:
        hosts = [f"n{node_index}" for node_index in range(nodes)]
        plans = [ServicePlan(f"s{number}", *fields) for number, fields in enumerate(services)]
        self.started: set[tuple[int, int, int]] = set()  # nodes that got a start command: cycle, joins, rank
        self.start(
            RunConfig(hosts, ray, 100.0, 50.0, spares=min(spares, nodes - 1), services=plans, **recovery), answers
        )

    def note(self, command: Any) -> None:
        super().note(command)
        if isinstance(command, StartServices):
            assert self.protocol.state in SERVING_STATES and self.protocol.nodes[command.node_index].runs_services
            started = self.cycle, self.joined[command.node_index], command.node_index
            assert started not in self.started, "started twice"
            self.started.add(started)
        if isinstance(command, StartDriver):
            assert self.all_done()

    @rule(number=st.integers(0, 2), node_index=NODE_INDEXES, state=st.sampled_from(list(ServiceState)), ago=AGO)
    def a_node_says_something_of_a_service(self, number: int, node_index: int, state: ServiceState, ago: int) -> None:
        self.feed(ServiceReport(f"s{number}", self.node_index(node_index), state, "in words", self.cycle - ago))

    @rule()
    def all_services_are_ready(self) -> None:
        for name, node_index in list(self.protocol.services.instances):
            self.feed(ServiceReport(name, node_index, ServiceState.READY, cycle=self.cycle))

    @rule()
    def all_goes_well_until_the_driver_runs(self) -> None:
        super().all_goes_well_until_the_driver_runs()
        self.all_services_are_ready()

    def all_done(self) -> bool:
        """Count every instance, where the state machine keeps a counter."""
        services, wanted = self.protocol.services, self.protocol.config.active_nodes
        done = (ServiceState.READY, ServiceState.ENDED)
        return all(
            sum(one.state in done for one in services.instances_of(plan.name)) == plan.instance_count(wanted)
            for plan in self.protocol.config.services
            if plan.gate
        )

    @invariant()
    def the_gate_is_open_when_all_gated_services_are_there(self) -> None:
        assert self.protocol.services.gate_open == self.all_done()

    @invariant()
    def ready_ones_are_counted(self) -> None:
        services = self.protocol.services
        for name in services.plans:
            ready = [one for one in services.instances_of(name) if one.state is ServiceState.READY]
            assert services.ready[name] == len(ready)

    @invariant()
    def a_node_that_serves_has_the_instances_of_its_rank_and_no_other_node_has_any(self) -> None:
        protocol, wanted = self.protocol, self.protocol.config.active_nodes
        found = {(one.service, one.node_index, one.rank) for one in protocol.services.instances.values()}
        due = {
            (plan.name, node.node_index, node.rank)
            for plan in protocol.config.services
            for node in protocol.nodes
            if node.runs_services and node.rank is not None and plan.runs_on(node.rank, wanted)
        }
        assert found == due if protocol.state in SERVING_STATES else found <= due


TestServicesInAnyOrder = Served.TestCase
TestServicesInAnyOrder.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
