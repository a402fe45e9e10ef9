"""Who may join a run: one agent for each node, under a number that is its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.states import NodeState


def refusal(nodes: Sequence[RunNode], rank: int, host: str) -> str | None:
    """Why an agent that calls itself this is not the one expected; None when it may be.

    Two nodes of one host are in order only where the allocation itself says so. A node that the run has given up
    before it came is none too many: it is just not used.
    """
    if rank not in range(len(nodes)):
        return f"{host} came as node {rank}, but this run has the nodes 0 to {len(nodes) - 1}"
    expected = nodes[rank]
    if expected.state is not NodeState.EXPECTED and expected.role is not Role.EXCLUDED:
        return f"{host} came as node {rank}, which has been here already: {expected.host}"
    if host != expected.host:
        for node in nodes:
            if node.host == host and node.state is not NodeState.EXPECTED:
                return f"{host} came as node {rank}, which should be {expected.host}; it is node {node.rank}"
    return None
