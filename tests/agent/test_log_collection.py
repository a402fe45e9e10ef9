"""The order in which nodes archive Ray's logs: the failed node and the head first, the others if time is left."""

from __future__ import annotations

from muster.agent.log_collection import GROUP_NODES, GROUP_PAUSE_S, LogCollection, leaderless_ending, run_ending
from muster.lifecycle.events import RunOutcome

FAILED = RunOutcome("failed", 125, "Ray's raylet was ended by SIGKILL", "n700", 700, "ray")
SUCCEEDED = RunOutcome("succeeded", 0, "the driver exited with 0")


def test_on_a_small_cluster_all_write_at_once() -> None:
    assert {run_ending(node_index, FAILED, 20.0).after for node_index in range(GROUP_NODES)} == {0.0}


def test_a_thousand_nodes_write_in_groups_within_the_time_there_is() -> None:
    told = [run_ending(node_index, FAILED, 20.0) for node_index in range(1000)]
    waiting = [one.after for node_index, one in enumerate(told) if node_index not in (0, 700)]
    assert max(waiting.count(after) for after in set(waiting)) <= GROUP_NODES
    assert all(one.seconds > 0 and one.after + one.seconds <= 20.0 for one in told)


def test_the_failed_node_and_the_head_write_at_once() -> None:
    assert run_ending(700, FAILED, 20.0).after == run_ending(0, FAILED, 20.0).after == 0.0


def test_with_little_time_only_the_failed_node_and_the_head_write() -> None:
    writing = [node_index for node_index in range(1000) if run_ending(node_index, FAILED, 3.0).seconds > 0]
    assert writing == [0, 700]


def test_with_some_time_left_the_later_groups_write_nothing() -> None:
    writing = [node_index for node_index in range(1000) if run_ending(node_index, FAILED, 5.0).seconds > 0]
    assert writing == [*range(3 * GROUP_NODES), 700]


def test_with_no_time_left_no_node_writes() -> None:
    assert not any(run_ending(node_index, FAILED, 1.0).seconds for node_index in range(1000))


def test_a_stop_is_a_failure_unless_the_driver_exited_with_0() -> None:
    assert run_ending(1, SUCCEEDED, 20.0) == LogCollection(False, 0.0, 18.0)
    assert run_ending(1, RunOutcome("stopped", 143, "stopped by ann"), 20.0).failed
    assert not run_ending(1, RunOutcome("stopped", 0, "stopped by ann"), 20.0).failed


def test_a_node_without_a_leader_writes_its_logs_after_the_groups_before_it() -> None:
    told = leaderless_ending(2 * GROUP_NODES)
    assert told.failed and told.after == 2 * GROUP_PAUSE_S and told.seconds > 0
