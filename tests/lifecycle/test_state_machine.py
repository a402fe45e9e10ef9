"""The state machine under any order of events: its invariants hold, and it always ends."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from tests.lifecycle.any_order import ANSWERS, MAX_NODES, NODE_INDEXES, RECOVERY, AnyOrder

from muster.lifecycle.events import (
    DriverEnded,
    DriverStalled,
    Event,
    NodeFailed,
    NodeLost,
    Progress,
    Tick,
)
from muster.lifecycle.roles import Role
from muster.lifecycle.state_machine import RunConfig
from muster.lifecycle.states import RunState

TestAnyOrderOfEvents = AnyOrder.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


TROUBLE = st.sampled_from(["crashed", "stalled", "lost", "lost", "failed"])


class Recovering(AnyOrder):
    """Brings up runs with spares and restarts, then feeds mostly failures that can be repaired."""

    reached: ClassVar[Counter[str]] = Counter()
    # Rules that only end a run, or are part of a larger rule, are left to the machine above.
    a_stop_is_requested = the_driver_ends = the_driver_stalls = a_node_fails = a_node_is_lost = None
    a_node_arrives = the_head_is_up = None
    a_node_or_the_driver_fails_and_the_driver_ends = None

    @initialize(
        wanted=st.integers(1, 4),
        spares=st.integers(1, 3),
        segmented=st.booleans(),
        ray=st.booleans(),
        policy=st.sampled_from(["restart", "replace"]),
        budget=st.integers(1, 3),
        recovery=RECOVERY,
        answers=ANSWERS,
        what=TROUBLE,
        node_index=NODE_INDEXES,
    )
    def begin(  # type: ignore[override]
        self,
        wanted: int,
        spares: int,
        segmented: bool,
        ray: bool,
        policy: str,
        budget: int,
        recovery: dict[str, Any],
        answers: list[bool],
        what: str,
        node_index: int,
    ) -> None:
        if segmented:
            wanted, recovery = 2 + wanted % 2 * 2, {**recovery, "topology": True}
        more = {"on_node_loss": policy, "max_restarts": budget, "restart_on_driver_failure": True}
        hosts = [f"n{node_index}" for node_index in range(wanted + spares)]
        plan = RunConfig(hosts, ray, 100.0, 50.0, spares=spares, segment=2 if segmented else 1, **{**recovery, **more})
        self.mended: set[str] = set()
        self.start(plan, answers)
        self.all_goes_well_until_the_driver_runs()
        if self.protocol.state is RunState.RUNNING:  # segments may be too few
            self.trouble(what, node_index, progress=True, ends=True, back=True)

    def feed(self, event: Event) -> None:
        before, cycle = {node.node_index for node in self.active()}, self.cycle
        super().feed(event)
        if self.cycle > cycle:
            self.mended.add("restarted")
        elif (
            self.protocol.state is RunState.RUNNING and before and before - {node.node_index for node in self.active()}
        ):
            self.mended.add("replaced")

    def follower(self, node_index: int) -> int:
        """Return an active node other than the leader if there is one, else any node but the leader."""
        others = [node.node_index for node in self.active() if node.node_index != self.protocol.leader]
        others = others or list(range(1, self.protocol.config.nodes))
        return others[node_index % len(others)]

    @precondition(lambda self: self.protocol.state is RunState.RUNNING)
    @rule(what=TROUBLE, node_index=NODE_INDEXES, progress=st.booleans(), ends=st.booleans(), back=st.booleans())
    def trouble(self, what: str, node_index: int, progress: bool, ends: bool, back: bool) -> None:
        """Fail the driver or a node under it; nodes may then be cleaned and the next cycle brought up."""
        if progress:
            self.feed(Progress(self.cycle))
        if what == "stalled":
            self.feed(DriverStalled("no output for 60 s", self.cycle))
        elif what == "lost":
            self.feed(NodeLost(self.follower(node_index), "its connection ended"))
        elif what == "failed":
            self.feed(NodeFailed(self.follower(node_index), "ray", "it broke", self.cycle))
        if what == "crashed" or (self.protocol.state is RunState.RESTARTING and ends):
            self.feed(DriverEnded(1, "exited with 1", self.cycle))
        if back:
            self.all_goes_well_until_the_driver_runs()

    @precondition(lambda self: self.protocol.state in (RunState.RUNNING, RunState.STARTING, RunState.GATHERING))
    @rule(node_index=st.integers(1, MAX_NODES))
    def a_spare_is_lost(self, node_index: int) -> None:
        waiting = [node.node_index for node in self.protocol.nodes if node.role is Role.SPARE]
        if waiting:
            self.feed(NodeLost(waiting[node_index % len(waiting)], "its connection ended"))

    @precondition(lambda self: self.protocol.driver_running)
    @rule(code=st.sampled_from([0, 1]))
    def the_driver_leaves(self, code: int) -> None:
        self.feed(DriverEnded(code, f"exited with {code}", self.cycle))

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Tick())

    def teardown(self) -> None:
        super().teardown()
        for what in ("run", *getattr(self, "mended", ())):
            event(what)
            self.reached[what] += 1


def test_runs_that_recover_keep_the_invariants_and_many_do_recover() -> None:
    Recovering.reached.clear()
    many = settings(max_examples=300, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(Recovering, settings=many)  # type: ignore[no-untyped-call]
    reached = Recovering.reached
    assert reached["restarted"] > 0.3 * reached["run"] and reached["replaced"] > 0.05 * reached["run"], reached
