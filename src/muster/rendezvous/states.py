"""The states of a run and of its nodes, as tables. This module imports nothing of Muster."""

from __future__ import annotations

from enum import Enum


class RunState(str, Enum):
    """What the run is doing.

    state       leaves on                                     to
    gathering   every node has arrived                        starting
    starting    every node is ready                           running
    running     the driver ended                              finishing
    finishing   every node is verified clean, or a deadline   succeeded | failed | stopped
    (any of the first three)   a failure or a stop request    finishing
    """

    GATHERING = "gathering"
    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class NodeState(str, Enum):
    """What one node is doing, as the lead knows it.

    state      leaves on                                            to
    expected   its agent joined                                     arrived
    arrived    it was told to start its part of Ray; without Ray    starting; ready
    starting   its part of Ray is alive in the cluster              ready
    ready      the run finishes                                     stopping
    stopping   it reported every process gone and logs collected    gone
    (any)      it said what went wrong; its connection ended        failed; lost
    """

    EXPECTED = "expected"
    ARRIVED = "arrived"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    GONE = "gone"
    FAILED = "failed"
    LOST = "lost"


RUN_MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.GATHERING: frozenset({RunState.STARTING, RunState.FINISHING}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.FINISHING}),
    RunState.RUNNING: frozenset({RunState.FINISHING}),
    RunState.FINISHING: frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}),
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.STOPPED: frozenset(),
}

NODE_MOVES: dict[NodeState, frozenset[NodeState]] = {
    NodeState.EXPECTED: frozenset({NodeState.ARRIVED, NodeState.FAILED, NodeState.LOST}),
    NodeState.ARRIVED: frozenset(
        {NodeState.STARTING, NodeState.READY, NodeState.STOPPING, NodeState.FAILED, NodeState.LOST}
    ),
    NodeState.STARTING: frozenset({NodeState.READY, NodeState.STOPPING, NodeState.FAILED, NodeState.LOST}),
    NodeState.READY: frozenset({NodeState.STOPPING, NodeState.FAILED, NodeState.LOST}),
    NodeState.STOPPING: frozenset({NodeState.GONE, NodeState.LOST}),
    NodeState.FAILED: frozenset({NodeState.STOPPING, NodeState.LOST}),
    NodeState.GONE: frozenset(),
    NodeState.LOST: frozenset(),
}

ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})
DEPARTED = frozenset({NodeState.GONE, NodeState.LOST})
CONNECTED = frozenset({NodeState.ARRIVED, NodeState.STARTING, NodeState.READY, NodeState.FAILED})
