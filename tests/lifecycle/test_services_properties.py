"""Services under any order of events: the count behind the gate is right, and instances are where they should be."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from tests.lifecycle.any_order import AGO, ANSWERS, MENDING, MOST_NODES, RANKS, AnyOrder

from muster.lifecycle.events import ServiceReport, StartDriver, StartServices
from muster.lifecycle.service_rules import SERVES
from muster.lifecycle.services import ServicePlan, ServiceState
from muster.lifecycle.state_machine import RunConfig

SCOPES = st.sampled_from(["all", "head", "any", 1, 2])
SERVICES = st.lists(st.tuples(SCOPES, st.booleans(), st.sampled_from([20.0, 200.0])), min_size=1, max_size=3)


class Served(AnyOrder):
    """The same events, and words about services, whether anybody has them or not."""

    @initialize(
        nodes=st.integers(1, MOST_NODES),
        spares=st.integers(0, 2),
        ray=st.booleans(),
        mending=MENDING,
        answers=ANSWERS,
        services=SERVICES,
    )
    def begin(  # type: ignore[override]
        self, nodes: int, spares: int, ray: bool, mending: dict[str, Any], answers: list[bool], services: Any
    ) -> None:
        hosts = [f"n{rank}" for rank in range(nodes)]
        plans = [ServicePlan(f"s{number}", *fields) for number, fields in enumerate(services)]
        self.begun: set[tuple[int, int, int]] = set()  # nodes that were told to start theirs: cycle, joined, rank
        self.start(
            RunConfig(hosts, ray, 100.0, 50.0, spares=min(spares, nodes - 1), services=plans, **mending), answers
        )

    def note(self, command: Any) -> None:
        super().note(command)
        if isinstance(command, StartServices):
            assert self.protocol.state in SERVES and self.protocol.nodes[command.rank].serves
            told = self.cycle, self.joined[command.rank], command.rank
            assert told not in self.begun, "told twice"
            self.begun.add(told)
        if isinstance(command, StartDriver):
            assert self.all_done()

    @rule(number=st.integers(0, 2), rank=RANKS, state=st.sampled_from(list(ServiceState)), ago=AGO)
    def a_node_says_something_of_a_service(self, number: int, rank: int, state: ServiceState, ago: int) -> None:
        self.feed(ServiceReport(f"s{number}", self.rank(rank), state, "in words", self.cycle - ago))

    @rule()
    def all_services_are_ready(self) -> None:
        for name, rank in list(self.protocol.services.instances):
            self.feed(ServiceReport(name, rank, ServiceState.READY, cycle=self.cycle))

    @rule()
    def all_goes_well_until_the_driver_runs(self) -> None:
        super().all_goes_well_until_the_driver_runs()
        self.all_services_are_ready()

    def all_done(self) -> bool:
        """By looking at every instance, where the protocol counts."""
        done, wanted = (ServiceState.READY, ServiceState.ENDED), self.protocol.plan.wanted
        return all(
            sum(one.state in done for one in self.protocol.services.of(plan.name)) == plan.wanted(wanted)
            for plan in self.protocol.plan.services
            if plan.gate
        )

    @invariant()
    def the_gate_is_open_when_all_gated_services_are_there(self) -> None:
        assert self.protocol.services.open == self.all_done()

    @invariant()
    def ready_ones_are_counted(self) -> None:
        services = self.protocol.services
        for name in services.plans:
            ready = [one for one in services.of(name) if one.state is ServiceState.READY]
            assert services.ready[name] == len(ready)

    @invariant()
    def a_node_that_serves_has_the_instances_of_its_rank_and_no_other_node_has_any(self) -> None:
        protocol, wanted = self.protocol, self.protocol.plan.wanted
        found = {(one.service, one.rank, one.logical) for one in protocol.services.instances.values()}
        due = {
            (plan.name, node.rank, node.logical)
            for plan in protocol.plan.services
            for node in protocol.nodes
            if node.serves and node.logical is not None and plan.runs_on(node.logical, wanted)
        }
        assert found == due if protocol.state in SERVES else found <= due


TestServicesInAnyOrder = Served.TestCase
TestServicesInAnyOrder.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
