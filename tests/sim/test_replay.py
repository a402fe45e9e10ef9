"""A replay of calls recorded in a simulation gives the same results and measures the leader's CPU time."""

from __future__ import annotations

from collections import Counter

from muster.election.membership import first_membership
from muster.lifecycle.config import RESTART, RunConfig, TermStart
from muster.lifecycle.events import Arrived, NodeLost
from muster.lifecycle.states import RunState
from tests.sim.large import LargeRun
from tests.sim.large import simulate as simulate_large
from tests.sim.replay import LeaderCost, RecordedLease, RecordedStateMachine, TermRecording, replay

PLAN = RunConfig([f"n{index}" for index in range(6)], ray=False, spares=2, on_node_loss=RESTART, max_restarts=1)


def recorded() -> tuple[TermRecording, RecordedStateMachine]:
    """Return the recording of a leader that six nodes join and one leaves, and its state machine."""
    recording, machine = TermRecording(PLAN, 0.0, TermStart()), RecordedStateMachine(PLAN, 0.0)
    machine.recording, recording.first = recording, (first_membership(6), None)
    lease = RecordedLease(machine, *recording.first)
    lease.recording = recording
    machine.start(0.0)
    for index in range(6):
        lease.joined(index, 0.0, -1, 0.0)
        machine.handle(Arrived(index, f"n{index}"), 0.0)
        lease.run_changed(0.0)
    machine.handle(NodeLost(5, "gone"), 1.0)
    return recording, machine


def test_a_replay_makes_the_recorded_calls_and_finds_the_rounds() -> None:
    recording, machine = recorded()
    assert machine.state is RunState.RUNNING
    cost = replay([recording])
    counts = {"begin": 1, "start": 1, "lease: joined": 6, "Arrived": 6, "lease: run_changed": 6, "NodeLost": 1}
    assert cost.events == Counter(counts)
    assert [cycle for cycle, _ in cost.rounds] == [0] and cost.cpu >= cost.rounds[0][1] >= 0.0


def test_the_cost_of_a_call_is_counted_for_its_event() -> None:
    cost = LeaderCost()
    cost.add("NodeLost", 0.5)
    cost.add("NodeLost", 0.25)
    assert (cost.cpu, dict(cost.cpu_by_event), cost.events["NodeLost"]) == (0.75, {"NodeLost": 0.75}, 2)


def test_every_round_of_a_large_run_has_its_cost() -> None:
    figures = simulate_large(LargeRun(nodes=40, spares=6, losses=4, seed=3))
    assert [entry["cycle"] for entry in figures["rounds"]] == list(range(figures["cycles"]))
    assert figures["lead_cpu_s_by_event"]["NodeLost"].endswith("s for 3")
