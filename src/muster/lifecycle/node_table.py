"""The nodes of a run and everything that is derived from them: every change of a node passes through one method."""

from __future__ import annotations

from muster.lifecycle.config import RunConfig
from muster.lifecycle.node_sets import NodeSets
from muster.lifecycle.roles import Role, RunNode, join_refusal
from muster.lifecycle.services import Services
from muster.lifecycle.states import NODE_TRANSITIONS, NodeState
from muster.lifecycle.transition import TransitionBuilder


class NodeTable:
    """Holds the nodes by node index. A change updates the sets and the services, and is a result of the event."""

    def __init__(self, config: RunConfig, nodes: list[RunNode], services: Services, results: TransitionBuilder) -> None:
        self.nodes = nodes
        self.sets = NodeSets(config, nodes)
        self.role_changes = 0
        self._services, self._results = services, results

    def active(self, state: NodeState | None = None) -> list[RunNode]:
        """Return the nodes with a rank, or those in one state. A scan of all nodes."""
        return [node for node in self.nodes if node.role is Role.ACTIVE and state in (None, node.state)]

    def join_refusal(self, node_index: int, host: str) -> str | None:
        """Return why an agent may not join as this node; None when it may."""
        return join_refusal(self.nodes, node_index, host, self.sets.joined_hosts)

    def set_role(self, node_index: int, role: Role, rank: int | None = None) -> None:
        """Give the node this role; without a change there is no result."""
        self.change_role(self.nodes[node_index].with_role(role, rank))

    def change_role(self, node: RunNode) -> None:
        """Replace a node by one that may have another role or rank."""
        before = self.nodes[node.node_index]
        if node.role is not before.role or node.rank != before.rank:
            self.update(node)
            self.role_changes += 1
            self._results.changes.append(node)

    def set_state(self, node_index: int, state: NodeState) -> None:
        """Change the state of a node; a transition that the table of states does not allow is ignored."""
        node = self.nodes[node_index]
        if state in NODE_TRANSITIONS[node.state]:
            self.update(node.with_state(state))
            self._results.changes.append(self.nodes[node_index])

    def update(self, node: RunNode) -> None:
        """Replace a node and update what is derived from it. Nodes are changed only here."""
        before, self.nodes[node.node_index] = self.nodes[node.node_index], node
        self.sets.update(before, node)
        if self._services.plans:
            self._services.set_rank(node.node_index, node.rank if node.runs_services else None)
