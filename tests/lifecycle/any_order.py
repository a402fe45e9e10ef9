"""A Hypothesis machine that feeds events to a run's state machine in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from tests.lifecycle.invariants import LONGEST_GRACE_S, Invariants

from muster.lifecycle.events import (
    Arrived,
    DriverEnded,
    DriverStalled,
    ExclusionRequested,
    HeadUp,
    Health,
    NodeFailed,
    NodeGone,
    NodeLost,
    NodeReady,
    Progress,
    RestartForbidden,
    RestartRequested,
    StopRequested,
    Tick,
)
from muster.lifecycle.state_machine import FINISH_TIMEOUT_S, RunConfig
from muster.lifecycle.states import ENDED, RunState
from muster.lifecycle.topology import NodeLocation

MAX_NODES = 5
NODE_INDEXES = st.integers(0, MAX_NODES - 1)
AGO = st.sampled_from([0, 0, 0, 1])  # age of an event in cycles
RECOVERY = st.fixed_dictionaries(
    {
        "on_node_loss": st.sampled_from(["fail", "replace", "restart"]),
        "max_restarts": st.integers(0, 2),
        "restart_on_driver_failure": st.booleans(),
        "restart_grace": st.floats(0, LONGEST_GRACE_S),
        "no_progress_limit": st.integers(0, 2),
        "topology": st.booleans(),
        "gang": st.booleans(),
    }
)
ANSWERS = st.lists(st.booleans(), min_size=4)


class AnyOrder(Invariants):
    """Feeds every kind of event at any time, for ranks in any state."""

    @initialize(
        nodes=st.integers(1, MAX_NODES),
        spares=st.integers(0, 2),
        fewest=st.none() | st.integers(1, MAX_NODES),
        ray=st.booleans(),
        recovery=RECOVERY,
        answers=ANSWERS,
    )
    def begin(
        self, nodes: int, spares: int, fewest: int | None, ray: bool, recovery: dict[str, Any], answers: list[bool]
    ) -> None:
        hosts = [f"n{node_index}" for node_index in range(nodes)]
        plan = RunConfig(hosts, ray, 100.0, 50.0, spares=min(spares, nodes - 1), min_nodes=fewest, **recovery)
        self.start(plan, answers)

    # -- events -------------------------------------------------------------------------------------------------

    def node_index(self, node_index: int) -> int:
        return node_index % self.protocol.config.nodes

    def arrive(self, node_index: int) -> None:
        domain = "ab"[node_index // 2 % 2]
        self.feed(Arrived(node_index, f"n{node_index}", NodeLocation(domain, f"{domain}.n{node_index}")))

    @rule(node_index=NODE_INDEXES)
    def a_node_arrives(self, node_index: int) -> None:
        self.arrive(self.node_index(node_index))

    @rule()
    def all_nodes_arrive(self) -> None:
        for node_index in reversed(range(self.protocol.config.nodes)):
            self.arrive(node_index)

    @rule(ago=AGO)
    def the_head_is_up(self, ago: int) -> None:
        self.feed(HeadUp(self.cycle - ago))

    @rule(node_index=NODE_INDEXES, ago=AGO)
    def a_node_is_ready(self, node_index: int, ago: int) -> None:
        self.feed(NodeReady(self.node_index(node_index), self.cycle - ago))

    @rule()
    def ray_is_up_everywhere(self) -> None:
        self.feed(HeadUp(self.cycle))
        for node_index in range(self.protocol.config.nodes):
            self.feed(NodeReady(node_index, self.cycle))

    @rule()
    def every_stopped_node_is_clean(self) -> None:
        for node_index in sorted(self.unanswered):
            self.feed(NodeGone(node_index, self.cycle))

    @rule()
    def all_goes_well_until_the_driver_runs(self) -> None:
        self.all_nodes_arrive()
        self.every_stopped_node_is_clean()
        self.time_passes(self.protocol.config.last_call)
        self.ray_is_up_everywhere()

    @precondition(lambda self: self.protocol.state is RunState.RUNNING)
    @rule(node_index=NODE_INDEXES, driver_fails=st.booleans())
    def a_node_or_the_driver_fails_and_the_driver_ends(self, node_index: int, driver_fails: bool) -> None:
        if not driver_fails:
            self.feed(NodeLost(self.node_index(node_index), "its connection ended"))
        self.feed(DriverEnded(1, "exited with 1", self.cycle))

    @rule(node_index=NODE_INDEXES, phase=st.sampled_from(["start", "ray"]), ago=AGO)
    def a_node_fails(self, node_index: int, phase: str, ago: int) -> None:
        self.feed(NodeFailed(self.node_index(node_index), phase, "it broke", self.cycle - ago))

    @rule(node_index=NODE_INDEXES)
    def a_node_is_lost(self, node_index: int) -> None:
        self.feed(NodeLost(self.node_index(node_index), "its connection ended"))

    @rule(code=st.sampled_from([0, 1, 143]), ago=AGO)
    def the_driver_ends(self, code: int, ago: int) -> None:
        self.feed(DriverEnded(code, f"exited with {code}", self.cycle - ago))

    @rule(ago=AGO)
    def the_driver_stalls(self, ago: int) -> None:
        self.feed(DriverStalled("no output for 60 s", self.cycle - ago))

    @rule(signum=st.sampled_from([2, 15]), grace=st.floats(0, LONGEST_GRACE_S))
    def a_stop_is_requested(self, signum: int, grace: float) -> None:
        self.feed(StopRequested("stopped by alice", signum, grace))

    @rule(node_index=NODE_INDEXES, ago=AGO)
    def a_node_is_gone(self, node_index: int, ago: int) -> None:
        self.feed(NodeGone(self.node_index(node_index), self.cycle - ago))

    @rule(node_index=NODE_INDEXES, ok=st.booleans())
    def a_node_checks_itself(self, node_index: int, ok: bool) -> None:
        self.feed(Health(self.node_index(node_index), ok, "it is too warm"))

    @rule(node_index=NODE_INDEXES, at_once=st.booleans())
    def a_program_excludes_its_node(self, node_index: int, at_once: bool) -> None:
        self.feed(ExclusionRequested(self.node_index(node_index), "bad memory", at_once))

    @rule(ago=AGO)
    def a_program_forbids_restarts(self, ago: int) -> None:
        self.feed(RestartForbidden("the data are wrong", self.cycle - ago))

    @rule(ago=AGO)
    def a_program_requests_a_restart(self, ago: int) -> None:
        self.feed(RestartRequested("the loss is NaN", self.cycle - ago))

    @rule(ago=AGO)
    def the_driver_makes_progress(self, ago: int) -> None:
        self.feed(Progress(self.cycle - ago))

    @rule(seconds=st.floats(0, 150))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Tick())

    # -- termination --------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Assert that answers of any kind, or only the deadline, conclude a run that is finishing."""
        if not hasattr(self, "protocol"):
            return
        self.feed(StopRequested("the test is over", 15, 1.0))
        wait_for_deadline, *kinds = self.answers
        if wait_for_deadline:
            self.now += LONGEST_GRACE_S + FINISH_TIMEOUT_S
            self.feed(Tick())
        else:
            if self.protocol.driver_running:
                self.feed(DriverEnded(0, "exited with 0", self.cycle))
            for node_index in sorted(self.unanswered):
                self.feed(
                    NodeGone(node_index, self.cycle)
                    if kinds[node_index % len(kinds)]
                    else NodeLost(node_index, "its host went down")
                )
        assert self.protocol.state in ENDED
        self.a_run_is_concluded_exactly_when_it_has_ended_and_then_has_an_outcome()
