"""Results of built-in checks at the leader."""

from __future__ import annotations

from pathlib import Path

from tests.agent.leader.leader_doubles import LeaderParts

from muster.agent.control.messages import ChecksDone, Greeting
from muster.agent.leader.check_reports import END_CHECK_S, CheckReports, slow_nodes
from muster.lifecycle import events as m
from muster.lifecycle.topology import UNKNOWN_LOCATION

PASSED = ChecksDone(None, {})
FAILED = ChecksDone("disk: full", {})


def greeting(node_index: int, checking: bool = True) -> Greeting:
    return Greeting(node_index, f"n{node_index}", 0, UNKNOWN_LOCATION, None, checking)


def arrived(node_index: int) -> m.Event:
    return m.Arrived(node_index, f"n{node_index}", UNKNOWN_LOCATION)


def speed(value: float) -> ChecksDone:
    return ChecksDone(None, {"cpu-speed": value})


async def reports(path: Path, **fields: object) -> tuple[CheckReports, LeaderParts]:
    parts = LeaderParts(path, **{"node_checks": "basic", **fields})
    return CheckReports(parts.context), parts


async def test_a_node_arrives_when_its_checks_have_passed(tmp_path: Path) -> None:
    made, _ = await reports(tmp_path)
    assert list(made.on_joined(greeting(1))) == []
    assert list(made.on_done(1, PASSED)) == [arrived(1)]
    assert list(made.on_joined(greeting(2, checking=False))) == [arrived(2)]


async def test_a_node_whose_check_failed_arrives_excluded_and_is_recorded(tmp_path: Path) -> None:
    made, parts = await reports(tmp_path)
    assert list(made.on_joined(greeting(1))) == []
    reason = "its check failed: disk: full"
    assert list(made.on_done(1, FAILED)) == [m.ExclusionRequested(1, reason, True), arrived(1)]
    (event,) = [event for event in parts.publisher._events if event["event"] == "check"]
    assert (event["host"], event["ok"], event["reason"]) == ("n1", False, reason)


async def test_a_check_after_a_failure_excludes_the_node_from_the_next_cycle(tmp_path: Path) -> None:
    made, _ = await reports(tmp_path)
    assert list(made.on_done(1, PASSED)) == []
    assert [type(event) for event in made.on_done(1, FAILED)] == [m.ExclusionRequested]


async def test_a_node_that_was_lost_while_it_was_checked_does_not_arrive(tmp_path: Path) -> None:
    made, _ = await reports(tmp_path)
    assert list(made.on_joined(greeting(1))) == []
    made.on_lost(1)
    assert list(made.on_done(1, PASSED)) == []


async def test_the_slow_node_is_excluded_before_the_last_one_arrives(tmp_path: Path) -> None:
    made, _ = await reports(tmp_path, node_check={"cpu-speed": 0.7})
    for node_index in range(3):
        assert list(made.on_joined(greeting(node_index))) == []
    assert list(made.on_done(0, speed(2.0))) == [arrived(0)]
    assert list(made.on_done(1, speed(1.0))) == [arrived(1)]
    reason = "cpu-speed is 50% of the nodes' median (1.00 GB/s)"
    assert list(made.on_done(2, speed(2.1))) == [m.ExclusionRequested(1, reason, False), arrived(2)]
    assert list(made.on_done(2, speed(2.1))) == []  # to another leader's question: nothing new


async def test_nodes_are_compared_when_no_connected_one_is_being_checked(tmp_path: Path) -> None:
    made, _ = await reports(tmp_path, node_check={"cpu-speed": 0.7})
    for node_index in range(4):
        assert list(made.on_joined(greeting(node_index))) == []
    for node_index, value in enumerate((1.0, 2.0, 2.0)):
        assert list(made.on_done(node_index, speed(value))) == [arrived(node_index)]
    excluded, last = made.on_done(3, speed(2.0))
    assert isinstance(excluded, m.ExclusionRequested) and excluded.node_index == 0 and last == arrived(3)


def test_of_two_nodes_or_similar_ones_none_is_slow() -> None:
    assert slow_nodes({0: 1.0, 1: 9.0}, 0.7) == {}
    assert slow_nodes({0: 1.0, 1: 1.2, 2: 1.3, 3: 1.4}, 0.7) == {}


async def test_nodes_check_themselves_between_cycles_and_after_a_failure_that_ends_the_run(tmp_path: Path) -> None:
    made, _ = await reports(tmp_path)
    failed, stopped = m.RunOutcome("failed", 1, "x"), m.RunOutcome("stopped", 143, "x")
    assert made.seconds_for_stop(None, 0.0, False) == 60.0
    assert made.seconds_for_stop(failed, 20.0, False) == END_CHECK_S
    assert made.seconds_for_stop(failed, 5.0, False) == 2.0
    assert made.seconds_for_stop(failed, 2.0, False) is None
    assert made.seconds_for_stop(failed, 20.0, True) is None  # Slurm is about to kill everything
    assert made.seconds_for_stop(stopped, 20.0, False) is None


async def test_a_job_without_checks_has_none_after_a_failure(tmp_path: Path) -> None:
    made, _ = await reports(tmp_path, node_checks="none")
    assert made.seconds_for_stop(None, 0.0, False) is None
