"""The list of cycles in the status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from muster.agent.leader.cycle_history import CycleHistory
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
