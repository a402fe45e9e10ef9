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


def arrived(*ranks: int) -> list[Event]:
    return [Arrived(rank, HOSTS[rank]) for rank in ranks]


def clean(cycle: int, *ranks: int) -> list[Event]:
    return [NodeGone(rank, cycle) for rank in ranks]


def up(cycle: int, *ranks: int) -> list[Event]:
    return [HeadUp(cycle), *(NodeReady(rank, cycle) for rank in ranks)]


def roles(run: Run) -> list[tuple[str, int | None]]:
    return [(node.role.value, node.logical) for node in run.protocol.nodes]


def active(*ranks: int) -> list[tuple[str, int | None]]:
    return [("active", rank) for rank in ranks]


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
