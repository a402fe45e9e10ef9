"""The chain of steps that led to the driver's start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.views.service_runs import read, waiting
from tests.views.synthetic import START, SyntheticRun
from tests.views.timelines import seen_of

from muster.views.compare import bring_up
from muster.views.critical_path import HEAD_EVENT_DELAY_S, PathStep, critical_path
from muster.views.cycle_events import CycleEvents
from muster.views.phases import Phase


def test_the_critical_path_names_the_slow_node_and_its_seconds_leader_to_the_driver(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=4)
    run.brings_up(slow=2)
    run.ends()
    (cycle,) = seen_of(run.paths).attempts[0].cycles
    assert [(step.phase.value, step.node_index) for step in cycle.path] == [
        ("submitted", None),
        ("pending", None),
        ("launching", 0),
        ("starting", 0),
        ("starting", 2),
        ("joined", None),
    ]
    assert cycle.driver_start is not None
    assert sum(step.seconds for step in cycle.path) == pytest.approx(cycle.driver_start - START)
    assert cycle.path[4].what == "Ray starts on gpu0002"


def test_the_critical_path_goes_through_the_service_that_was_ready_last(tmp_path: Path) -> None:
    run = waiting(tmp_path / "r")
    run.service("sandbox", 1, after=1.0)
    run.service("sandbox", 2, after=4.0)
    run.tell("run", state="running")
    run.tell("driver_start", 0.5)
    run.ends()
    (cycle,) = seen_of(run.paths).attempts[0].cycles
    assert [(step.phase.value, step.node_index, step.what) for step in cycle.path[-3:]] == [
        ("launching", 2, "gpu0002 starts"),
        ("services", 2, "waiting for sandbox on gpu0002"),
        ("joined", None, "the driver starts"),
    ]
    assert cycle.path[-2].start == START + 34.0  # with its arrival: it did not wait for Ray
    assert bring_up(read(run)).figures["services"] == pytest.approx(cycle.path[-2].seconds)


QUEUE = PathStep(Phase.PENDING, None, 0.0, 100.0, "the job waits in the queue")


def steps(cycle: CycleEvents, now: float | None = None) -> list[tuple[str, int | None, float, float]]:
    """Return phase, node index, start and end of each step; steps follow each other without a gap."""
    path = critical_path([QUEUE], cycle, now)
    assert path[0] is QUEUE and [step.start for step in path[1:]] == [step.end for step in path[:-1]]
    return [(step.phase.value, step.node_index, step.start, step.end) for step in path[1:]]


def brought_up() -> CycleEvents:
    """Two nodes: the head starts at once, the other one after the head is up."""
    cycle = CycleEvents(0, 100.0, closed=103.0, driver_start=111.0, head=0, hosts={0: "n0", 1: "n1"})
    cycle.arrived.update({0: 101.0, 1: 103.0})
    cycle.starting.update({0: 101.0, 1: 106.0})
    cycle.ready.update({0: 106.0, 1: 110.0})
    return cycle


def test_without_a_driver_and_a_present_only_the_queue_is_known() -> None:
    assert critical_path([QUEUE], CycleEvents(0, 100.0), None) == (QUEUE,)


def test_a_worker_that_started_when_the_head_was_up_waited_for_it() -> None:
    assert steps(brought_up()) == [
        ("launching", 0, 100.0, 101.0),
        ("starting", 0, 101.0, 106.0),
        ("starting", 1, 106.0, 110.0),
        ("joined", None, 110.0, 111.0),
    ]


def test_the_head_s_event_may_be_written_a_little_after_those_of_the_workers() -> None:
    cycle = brought_up()
    cycle.starting[1] = 106.0 - HEAD_EVENT_DELAY_S / 2
    assert ("starting", 0, 101.0, cycle.starting[1]) in steps(cycle)
    cycle.starting[1] = 106.0 - 2 * HEAD_EVENT_DELAY_S  # it cannot have waited for the head: it came with its arrival
    assert steps(cycle)[:2] == [("launching", 1, 100.0, 103.0), ("starting", 1, 103.0, 110.0)]


def test_a_last_call_for_others_is_a_step() -> None:
    cycle = brought_up()
    cycle.arrived, cycle.closed, cycle.head = {0: 101.0, 1: 102.0}, 105.0, None
    cycle.starting = {0: 105.0, 1: 105.0}
    assert steps(cycle) == [
        ("launching", 1, 100.0, 102.0),
        ("arrived", None, 102.0, 105.0),
        ("starting", 1, 105.0, 110.0),
        ("joined", None, 110.0, 111.0),
    ]


def test_the_current_wait_is_for_the_node_whose_ray_has_started_for_longest() -> None:
    cycle = brought_up()
    cycle.driver_start, cycle.ready = None, {}
    cycle.starting = {0: 101.0, 1: 106.0}
    path = critical_path([], cycle, 120.0)
    assert (path[-1].what, path[-1].node_index, path[-1].end) == ("Ray starts on n0 (and 1 more)", 0, 120.0)


def test_in_a_later_cycle_the_wait_is_for_the_cleanup_of_the_one_before() -> None:
    cycle = CycleEvents(1, 100.0, hosts={0: "n0", 1: "n1"})
    cycle.stopping.update({0: 102.0, 1: 103.0})
    path = critical_path([], cycle, 110.0)
    assert [(step.what, step.start, step.end) for step in path] == [
        ("the previous driver is stopped", 100.0, 102.0),
        ("cleanup of n0 (and 1 more)", 102.0, 110.0),
    ]


def test_a_run_without_nodes_waits_for_them_and_the_end_of_the_wait_is_its_giving_up() -> None:
    cycle = CycleEvents(0, 100.0)
    assert steps(cycle, now=130.0) == [("launching", None, 100.0, 130.0)]
    cycle.given_up = 120.0
    assert steps(cycle, now=130.0) == [("launching", None, 100.0, 120.0)]


def test_when_all_nodes_are_there_and_nothing_else_is_awaited_the_driver_is() -> None:
    cycle = CycleEvents(0, 100.0, closed=103.0, hosts={0: "n0"})
    cycle.arrived[0] = 103.0
    path = critical_path([], cycle, 105.0)
    assert [step.what for step in path] == ["n0 starts", "waiting for the driver"]
