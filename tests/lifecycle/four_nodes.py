"""Runs of four nodes, one of them a spare, for tests of roles, cycles and the acceptance list."""

from __future__ import annotations

from dataclasses import replace

from tests.lifecycle.conftest import Run

from muster.lifecycle.config import RESTART, RunConfig
from muster.lifecycle.events import Arrived, DriverEnded, Event, HeadUp, NodeGone, NodeLost, NodeReady
from muster.lifecycle.states import RunState

HOSTS = ("n0", "n1", "n2", "n3")
CONFIG = RunConfig(HOSTS, gather_timeout=100.0, start_timeout=50.0, spares=1, last_call=5.0)
RESTART_CONFIG = replace(CONFIG, on_node_loss=RESTART, max_restarts=2, restart_grace=30.0)
SPARE = ("spare", None)
EXCLUDED = ("excluded", None)
DRIVER_TERMINATED = DriverEnded(143, "was ended by SIGTERM")


def arrived(*node_indexes: int) -> list[Event]:
    return [Arrived(node_index, HOSTS[node_index]) for node_index in node_indexes]


def clean(cycle: int, *node_indexes: int) -> list[Event]:
    return [NodeGone(node_index, cycle) for node_index in node_indexes]


def up(cycle: int, *node_indexes: int) -> list[Event]:
    return [HeadUp(cycle), *(NodeReady(node_index, cycle) for node_index in node_indexes)]


def roles(run: Run) -> list[tuple[str, int | None]]:
    return [(node.role.value, node.rank) for node in run.protocol.nodes]


def active(*node_indexes: int) -> list[tuple[str, int | None]]:
    return [("active", node_index) for node_index in node_indexes]


def driving(config: RunConfig) -> Run:
    """Return a run in which three of four nodes are active and the driver runs."""
    run = Run(config)
    run.feed(*arrived(0, 1, 2, 3), *up(0, 0, 1, 2))
    assert run.state is RunState.RUNNING
    return run


def restarted() -> Run:
    """Return a run that lost n1 under the driver, which has ended; all nodes are being cleaned for cycle 1."""
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "the agent of n1 is gone"), DRIVER_TERMINATED)
    return run
