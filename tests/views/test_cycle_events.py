"""The times of each cycle, from its events."""

from __future__ import annotations

from typing import Any

from muster.lifecycle.services import ServicePlan
from muster.views.cycle_events import CycleEvents, RunCycleEvents
from muster.views.record import RecordedEvent
from muster.views.service_gate import Gate


def event(time: float, name: str, cycle: int = 0, **fields: Any) -> RecordedEvent:
    return RecordedEvent(time, name, cycle, 0, fields)


def node(time: float, node_index: int, state: str, cycle: int = 0, **fields: Any) -> RecordedEvent:
    return event(time, "node", cycle, rank=node_index, host=f"n{node_index}", state=state, **fields)


def collected(*events: RecordedEvent, gate: Gate | None = None) -> CycleEvents:
    cycle = CycleEvents(0, 0.0, gate=gate) if gate else CycleEvents(0, 0.0)
    for one in events:
        cycle.add(one)
    return cycle


def test_the_first_time_of_a_state_counts_since_a_change_of_role_repeats_it() -> None:
    cycle = collected(node(1.0, 0, "arrived"), node(2.0, 0, "arrived", role="active"), node(3.0, 0, "ready"))
    assert (cycle.arrived, cycle.ready, cycle.hosts) == ({0: 1.0}, {0: 3.0}, {0: "n0"})


def test_the_first_node_that_starts_ray_is_the_head() -> None:
    assert collected(node(1.0, 3, "starting"), node(2.0, 0, "starting")).head == 3


def test_events_after_the_driver_s_start_do_not_count_except_its_end() -> None:
    cycle = collected(
        event(5.0, "driver_start"), node(6.0, 0, "arrived"), event(9.0, "driver_end"), event(11.0, "note")
    )
    assert (cycle.driver_start, cycle.driver_end, cycle.arrived) == (5.0, 9.0, {})


def test_a_node_that_left_is_forgotten_with_its_services() -> None:
    cycle = collected(
        node(1.0, 0, "arrived", role="active", logical_rank=0),
        event(2.0, "service", rank=0, service="web", state="ready"),
        node(3.0, 0, "lost"),
        node(4.0, 1, "arrived"),
        gate=Gate((ServicePlan("web"),), 2),
    )
    assert (cycle.arrived, cycle.ranked, cycle.awaits, cycle.served) == ({1: 4.0}, {}, {}, {})


def test_a_node_whose_loss_ended_the_run_is_not_forgotten() -> None:
    cycle = collected(node(1.0, 0, "arrived"), node(2.0, 0, "lost"), event(3.0, "run", state="finishing"))
    cycle.forget_left_node()
    assert (cycle.given_up, cycle.arrived) == (3.0, {0: 1.0})
    cycle.add(node(4.0, 1, "arrived"))
    cycle.add(event(5.0, "run", state="finishing"))
    assert (cycle.given_up, cycle.arrived) == (3.0, {0: 1.0})


def test_a_service_that_ended_well_is_served_since_it_was_ready_and_a_restarting_one_is_not() -> None:
    ready = event(2.0, "service", rank=0, service="web", state="ready")
    ended = event(4.0, "service", rank=0, service="web", state="ended")
    restarting = event(5.0, "service", rank=0, service="web", state="restarting")
    assert collected(ready, ended).served == {("web", 0): 2.0}
    assert collected(ready, ended, restarting).served == {}


def test_a_node_waits_for_its_services_from_the_time_it_has_a_rank() -> None:
    gate = Gate((ServicePlan("web", "head"),), 2)
    spare = collected(node(1.0, 0, "arrived", role="spare"), gate=gate)
    assert (spare.ranked, spare.awaits) == ({}, {})
    cycle = collected(
        node(1.0, 0, "arrived", role="waiting"), node(2.0, 0, "arrived", role="active", logical_rank=0), gate=gate
    )
    assert (cycle.ranked, cycle.awaits) == ({0: 2.0}, {0: ("web",)})


def test_the_next_cycle_begins_when_the_run_restarts_and_ends_the_one_before() -> None:
    events = RunCycleEvents(10.0)
    for one in (
        node(11.0, 0, "arrived"),
        event(20.0, "run", state="restarting"),
        event(25.0, "driver_end"),
        node(26.0, 0, "stopping", cycle=1),
        node(40.0, 0, "arrived", cycle=2),
    ):
        events.add(one)
    found = [(cycle.cycle, cycle.start, end) for cycle, end in events.cycles(50.0)]
    assert found == [(0, 10.0, 20.0), (1, 20.0, 40.0), (2, 40.0, 50.0)]
    assert events.cycles(50.0)[1][0].hosts == {0: "n0"}


def test_a_cycle_ends_with_the_reason_of_the_restart() -> None:
    events = RunCycleEvents(10.0)
    for one in (
        node(11.0, 0, "arrived"),
        event(20.0, "run", state="restarting", reason="n1 is lost"),
        node(26.0, 0, "stopping", cycle=1),
    ):
        events.add(one)
    assert [cycle.end_reason for cycle, _ in events.cycles(50.0)] == ["n1 is lost", ""]


def test_an_attempt_without_events_has_one_cycle() -> None:
    ((cycle, end),) = RunCycleEvents(10.0).cycles(50.0)
    assert (cycle.cycle, cycle.start, end) == (0, 10.0, 50.0)
