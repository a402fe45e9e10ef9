"""The roster of a leader follows the nodes of its run."""

from __future__ import annotations

from muster.election.roster import Roster
from muster.lifecycle.config import RESTART, RunConfig
from muster.lifecycle.events import Arrived, NodeLost
from muster.lifecycle.state_machine import RunStateMachine

CONFIG = RunConfig(["n0", "n1", "n2", "n3"], ray=False, spares=1, on_node_loss=RESTART, max_restarts=1)


def test_members_have_joined_and_lost_nodes_are_excluded() -> None:
    machine = RunStateMachine(CONFIG, 0.0)
    roster = Roster(machine)
    for node in (0, 1, 3):
        machine.handle(Arrived(node, f"n{node}"), 0.0)
    assert roster.update() and (roster.members, roster.excluded) == ({0, 1, 3}, set())
    machine.handle(NodeLost(2, "its host is down"), 0.0)
    assert roster.update() and (roster.members, roster.excluded) == ({0, 1, 3}, {2})


def test_an_update_without_changes_returns_false() -> None:
    machine = RunStateMachine(CONFIG, 0.0)
    roster = Roster(machine)
    assert roster.update() and not roster.update()
    machine.handle(Arrived(0, "n0"), 0.0)
    assert roster.update() and not roster.update()
