"""The list of cycles in the status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.agent.leader import cycle_history
from muster.agent.leader.cycle_history import MAX_CYCLES, MAX_HOSTS, MIN_CYCLES, CycleHistory
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.states import NodeState, RunState

NODES = [
    RunNode(0, "n0", NodeState.READY, Role.ACTIVE, 1),
    RunNode(1, "n1", NodeState.READY, Role.ACTIVE, 0),
    RunNode(2, "n2", NodeState.ARRIVED, Role.SPARE),
]


def machine(**state: Any) -> Any:
    first = {"cycle": 0, "state": RunState.STARTING, "nodes": NODES, "role_changes": 1, "progressed": False}
    return SimpleNamespace(**{**first, "restart_reason": "", "outcome": None, **state})


def test_a_cycle_lists_its_members_by_rank_and_its_spares() -> None:
    history = CycleHistory(machine())
    history.update(10.0)
    (entry,) = history.entries
    assert (entry["start"], entry["end"], entry["members"], entry["spares"]) == (10.0, None, ["n1", "n0"], ["n2"])


def test_the_next_cycle_ends_the_one_before_with_the_reason_of_the_restart() -> None:
    state = machine()
    history = CycleHistory(state)
    history.update(10.0)
    state.cycle, state.restart_reason, state.progressed = 1, "n0 is lost", True
    history.update(20.0)
    assert [(entry["end"], entry["reason"]) for entry in history.entries] == [(20.0, "n0 is lost"), (None, None)]
    assert [entry["progress"] for entry in history.entries] == [False, True]


def test_a_later_leader_keeps_the_published_cycles_before_its_own() -> None:
    before = [{"cycle": 0, "end": 15.0}, {"cycle": 1, "end": None}]
    history = CycleHistory(machine(cycle=1), before)
    history.update(20.0)
    assert [entry["cycle"] for entry in history.entries] == [0, 1] and history.entries[1]["start"] == 20.0


def test_the_outcome_ends_the_last_cycle() -> None:
    state = machine()
    history = CycleHistory(state)
    history.update(10.0)
    state.state, state.outcome = RunState.SUCCEEDED, SimpleNamespace(end_reason="the driver exited with 0")
    history.update(30.0)
    assert (history.entries[0]["end"], history.entries[0]["reason"]) == (30.0, "the driver exited with 0")


def test_a_change_of_a_node_changes_the_members_of_the_cycle() -> None:
    history = CycleHistory(machine())
    history.update(10.0)
    gone = RunNode(1, "n1", NodeState.LOST, Role.EXCLUDED)
    history.update(11.0, [RunState.RUNNING, gone, RunNode(2, "n2", NodeState.STARTING, Role.ACTIVE, 0)])
    (entry,) = history.entries
    assert (entry["members"], entry["spares"]) == (["n2", "n0"], [])


def test_the_members_of_an_ended_cycle_are_those_that_it_ended_with() -> None:
    state = machine()
    history = CycleHistory(state)
    history.update(10.0)
    history.update(11.0, [RunNode(2, "n2", NodeState.STARTING, Role.ACTIVE, 2)])
    state.cycle, state.state, state.nodes = 1, RunState.GATHERING, []
    history.update(12.0, [RunNode(0, "n0", NodeState.ARRIVED)])
    assert [entry["members"] for entry in history.entries] == [["n1", "n0", "n2"], []]


def test_members_are_sorted_once_for_a_status_and_not_at_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    sorts = 0

    def counted(values: Any) -> Any:
        nonlocal sorts
        sorts += 1
        return sorted(values)

    monkeypatch.setattr(cycle_history, "sorted", counted, raising=False)
    history = CycleHistory(machine())
    for number in range(100):
        history.update(10.0, [RunNode(2, f"n{number}", NodeState.READY, Role.ACTIVE, 2)])
    assert history.entries[0]["members"] == ["n1", "n0", "n99"] and sorts == 2


def run_cycles(count: int, nodes: list[RunNode], progress: int = -1) -> CycleHistory:
    """Return the history of so many cycles; the one with the number `progress` made progress."""
    state = machine(nodes=nodes)
    history = CycleHistory(state)
    for cycle in range(count):
        state.cycle, state.progressed = cycle, cycle == progress
        history.update(float(cycle))
    return history


@pytest.mark.parametrize(("progress", "without"), [(-1, 80), (60, 19), (99, 80)])
def test_old_cycles_are_dropped_and_counted(progress: int, without: int) -> None:
    history = run_cycles(80 + MAX_CYCLES, NODES, progress)
    assert (history.dropped, len(history.entries), history.entries[0]["cycle"]) == (80, MAX_CYCLES, 80)
    assert history.dropped_without_progress == without


def test_cycles_of_many_nodes_are_dropped_earlier() -> None:
    many = [RunNode(number, f"n{number}", NodeState.READY, Role.ACTIVE, number) for number in range(MAX_HOSTS // 2)]
    history = run_cycles(6, many)
    assert sum(len(entry["members"]) for entry in history.entries) <= MAX_HOSTS + len(many)
    assert MIN_CYCLES <= len(history.entries) <= 3 and history.dropped == 6 - len(history.entries)


def test_a_later_leader_counts_the_dropped_cycles_on() -> None:
    before = [{"cycle": number, "end": 1.0, "progress": False} for number in range(30, 30 + MAX_CYCLES)]
    history = CycleHistory(machine(cycle=30 + MAX_CYCLES), before, 30, 7)
    history.update(20.0)
    assert (history.dropped, history.dropped_without_progress) == (31, 8)
