"""The states of a run and of its nodes, as tables. This module imports nothing of Muster."""

from __future__ import annotations

from enum import Enum


class RunState(str, Enum):
    """What the run is doing.

    state       leaves on                                     to
    gathering   the round closes: enough nodes have arrived   starting
    starting    every active node is ready                    running
    running     the driver ended                              finishing
    running     a loss or a failure that a new cycle mends    restarting
    restarting  the driver has ended                          gathering, of the next cycle
    finishing   every node is verified clean, or a deadline   succeeded | failed | stopped
    (any of the first four)    a failure or a stop request    finishing
    gathering, starting        the leader's own node failed     yielded, to the next leader
    """

    GATHERING = "gathering"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    YIELDED = "yielded"


class NodeState(str, Enum):
    """What one node is doing, as the leader knows it.

    state      leaves on                                            to
    expected   its agent joined                                     arrived
    arrived    it was told to start its part of Ray; without Ray    starting; ready
    starting   its part of Ray is alive in the cluster              ready
    ready      the run, or the cycle, ends                          stopping
    stopping   it reported every process gone and logs collected    gone; for the next cycle, arrived
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
    RunState.GATHERING: frozenset({RunState.STARTING, RunState.FINISHING, RunState.YIELDED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.FINISHING, RunState.YIELDED}),
    RunState.RUNNING: frozenset({RunState.RESTARTING, RunState.FINISHING}),
    RunState.RESTARTING: frozenset({RunState.GATHERING, RunState.FINISHING}),
    RunState.FINISHING: frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}),
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.STOPPED: frozenset(),
    RunState.YIELDED: frozenset(),
}

NODE_MOVES: dict[NodeState, frozenset[NodeState]] = {
    NodeState.EXPECTED: frozenset({NodeState.ARRIVED, NodeState.FAILED, NodeState.LOST}),
    NodeState.ARRIVED: frozenset(
        {NodeState.STARTING, NodeState.READY, NodeState.STOPPING, NodeState.FAILED, NodeState.LOST}
    ),
    NodeState.STARTING: frozenset({NodeState.READY, NodeState.STOPPING, NodeState.FAILED, NodeState.LOST}),
    NodeState.READY: frozenset({NodeState.STOPPING, NodeState.FAILED, NodeState.LOST}),
    NodeState.STOPPING: frozenset({NodeState.ARRIVED, NodeState.GONE, NodeState.LOST}),
    NodeState.FAILED: frozenset({NodeState.STOPPING, NodeState.LOST}),
    NodeState.GONE: frozenset(),
    NodeState.LOST: frozenset(),
}

ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.YIELDED})
DEPARTED = frozenset({NodeState.GONE, NodeState.LOST})
CONNECTED = frozenset({NodeState.ARRIVED, NodeState.STARTING, NodeState.READY, NodeState.FAILED})
