"""The states of a run and of its nodes, with their transition tables."""

from __future__ import annotations

from enum import Enum


class RunState(str, Enum):
    """The state of the run.

    state       leaves on                                     to
    gathering   the round closes: enough nodes have arrived   starting
    starting    every active node is ready                    running
    running     the driver ended                              finishing
    running     a loss or failure that a new cycle repairs    restarting
    starting    a loss, and fewer nodes suffice               restarting
    restarting  the driver has ended                          gathering (next cycle)
    finishing   every node is clean, or the deadline passed   succeeded | failed | stopped
    (any of the first four)    a failure or a stop request    finishing
    gathering, starting        the leader's own node failed   yielded (to the next leader)
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
    """The state of one node, as known to the leader.

    state      leaves on                                            to
    expected   its agent joined                                     arrived
    arrived    the leader starts Ray on it; runs without Ray        starting; ready
    starting   Ray on it has joined the cluster                     ready
    ready      the run or the cycle ends                            stopping
    stopping   it reported all processes gone and logs collected    gone; arrived (next cycle)
    (any)      it reported a failure; its connection ended          failed; lost
    """

    EXPECTED = "expected"
    ARRIVED = "arrived"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    GONE = "gone"
    FAILED = "failed"
    LOST = "lost"


RUN_TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.GATHERING: frozenset({RunState.STARTING, RunState.FINISHING, RunState.YIELDED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.RESTARTING, RunState.FINISHING, RunState.YIELDED}),
    RunState.RUNNING: frozenset({RunState.RESTARTING, RunState.FINISHING}),
    RunState.RESTARTING: frozenset({RunState.GATHERING, RunState.FINISHING}),
    RunState.FINISHING: frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}),
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.STOPPED: frozenset(),
    RunState.YIELDED: frozenset(),
}

NODE_TRANSITIONS: dict[NodeState, frozenset[NodeState]] = {
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

SERVING_STATES = frozenset({RunState.GATHERING, RunState.STARTING, RunState.RUNNING})  # in which services may start
ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.YIELDED})
DEPARTED = frozenset({NodeState.GONE, NodeState.LOST})
CONNECTED = frozenset({NodeState.ARRIVED, NodeState.STARTING, NodeState.READY, NodeState.FAILED})
