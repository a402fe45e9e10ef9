"""Admission of nodes, and their roles and ranks in a cycle. Pure functions over the list of nodes.

role       means                                           becomes
waiting    the round has not closed                        active | spare | excluded
active     has a rank and runs its part of Ray             waiting (next cycle) | excluded
spare      has no rank; includes nodes that arrive late    active, while healthy | waiting (next cycle) | excluded
excluded   failed or lost: never used again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from muster.lifecycle.config import EXTERNAL_LEADER, RunConfig
from muster.lifecycle.states import CONNECTED, DEPARTED, NodeState
from muster.lifecycle.topology import UNKNOWN_LOCATION, NodeLocation, rank_order


class Role(str, Enum):
    """The role of a node in the current cycle."""

    WAITING = "waiting"
    ACTIVE = "active"
    SPARE = "spare"
    EXCLUDED = "excluded"


@dataclass(frozen=True)
class RunNode:
    """A node of the run, as known to the leader."""

    node_index: (
        int  # its number in the allocation; never changes, and identifies it in events, commands and log file names
    )
    host: str
    state: NodeState = NodeState.EXPECTED
    role: Role = Role.WAITING
    rank: int | None = None  # its rank in the cycle; only active nodes have one
    location: NodeLocation = UNKNOWN_LOCATION
    unhealthy_reason: str | None = None  # result of its health check; None while it is healthy

    def with_role(self, role: Role, rank: int | None) -> RunNode:
        """Return the node in this role. `replace` would take three times as long for ten thousand nodes."""
        return RunNode(self.node_index, self.host, self.state, role, rank, self.location, self.unhealthy_reason)

    def with_state(self, state: NodeState) -> RunNode:
        """Return the node in this state."""
        return RunNode(self.node_index, self.host, state, self.role, self.rank, self.location, self.unhealthy_reason)

    @property
    def eligible(self) -> bool:
        """Whether it is healthy and not excluded."""
        return self.role is not Role.EXCLUDED and self.unhealthy_reason is None

    @property
    def available(self) -> bool:
        """Whether it can be given a rank now."""
        return self.eligible and self.state in CONNECTED and self.state is not NodeState.FAILED

    @property
    def pending(self) -> bool:
        """Whether it may still become available: it has not arrived, or is being cleaned for the next cycle."""
        return self.eligible and self.state in (NodeState.EXPECTED, NodeState.STOPPING)

    @property
    def awaited(self) -> bool:
        """Whether a round waits for it, even if the available nodes suffice: it is pending and missed no round."""
        return self.pending and self.role is not Role.SPARE

    @property
    def unready(self) -> bool:
        """Whether the start of the driver, or a replacement, waits for this node."""
        return self.role is Role.ACTIVE and self.state is not NodeState.READY

    @property
    def runs_services(self) -> bool:
        """Whether it has the services of its rank: from being active and connected until it is stopped."""
        return self.role is Role.ACTIVE and self.state in CONNECTED and self.state is not NodeState.FAILED

    @property
    def joined(self) -> bool:
        """Whether it has joined and not left. The run ends only when no node is left in this condition."""
        return self.state not in DEPARTED and self.state is not NodeState.EXPECTED


def initial_nodes(
    config: RunConfig, excluded: frozenset[int] = frozenset(), roster: frozenset[int] | None = None
) -> list[RunNode]:
    """Return the nodes before any has arrived. With fixed ranks every node is active from the start.

    A node that is not in the roster missed a round: it is a spare, for which no round waits.
    """
    nodes = []
    for node_index, host in enumerate(config.hosts):
        if node_index in excluded:
            nodes.append(RunNode(node_index, host, NodeState.LOST, Role.EXCLUDED))
        elif config.fixed_ranks:
            nodes.append(RunNode(node_index, host, role=Role.ACTIVE, rank=node_index))
        else:
            is_late = roster is not None and node_index not in roster
            nodes.append(RunNode(node_index, host, role=Role.SPARE if is_late else Role.WAITING))
    return nodes


def join_refusal(
    nodes: Sequence[RunNode], node_index: int, host: str, joined_hosts: Mapping[str, int] | None = None
) -> str | None:
    """Return why an agent may not join as this node; None when it may.

    Two nodes on one host are accepted only if the allocation lists the host twice. A node that the run has excluded
    before it arrived may join, but is not used. `joined_hosts`: the first node that has joined on each host; without
    it all nodes are searched.
    """
    if node_index not in range(len(nodes)):
        return f"{host} joined as node {node_index}, but this run has only the nodes 0 to {len(nodes) - 1}"
    expected = nodes[node_index]
    if expected.state is not NodeState.EXPECTED and expected.role is not Role.EXCLUDED:
        return f"{host} joined as node {node_index}, but {expected.host} has joined as that node before"
    if host != expected.host:
        other = (hosts_joined(nodes) if joined_hosts is None else joined_hosts).get(host)
        if other is not None:
            return f"{host} joined as node {node_index}, which should be {expected.host}; {host} is node {other}"
    return None


def hosts_joined(nodes: Iterable[RunNode]) -> dict[str, int]:
    """Return the first node of each host among those that have joined or were excluded before."""
    found: dict[str, int] = {}
    for node in nodes:
        if node.state is not NodeState.EXPECTED:
            found.setdefault(node.host, node.node_index)
    return found


@dataclass(frozen=True)
class NodePool:
    """Nodes that could have a rank, in the order of ranks. It is sufficient only with the leader, unless external."""

    node_indexes: Sequence[int]
    needed: int
    leader: int

    @property
    def has_leader(self) -> bool:
        return self.leader == EXTERNAL_LEADER or self.leader in self.node_indexes

    @property
    def sufficient(self) -> bool:
        return self.has_leader and len(self.node_indexes) >= self.needed


def _pool(nodes: Iterable[RunNode], config: RunConfig, leader: int) -> NodePool:
    locations = {node.node_index: node.location for node in nodes}
    return NodePool(rank_order(locations, leader, config.segment), config.needed_nodes, leader)


def available_pool(nodes: Sequence[RunNode], config: RunConfig, leader: int) -> NodePool:
    """Return the nodes of a round that closes now."""
    return _pool((node for node in nodes if node.available), config, leader)


def usable_pool(nodes: Sequence[RunNode], config: RunConfig, leader: int) -> NodePool:
    """Return the nodes that a new cycle could use: those that have joined and are eligible."""
    return _pool((node for node in nodes if node.joined and node.eligible), config, leader)


def possible_pool(nodes: Sequence[RunNode], config: RunConfig, leader: int) -> NodePool:
    """Return the nodes that a gathering round can still get. Locations count once all of them are known."""
    left = [node for node in nodes if node.available or node.pending]
    if any(node.state is NodeState.EXPECTED for node in left):
        return NodePool([node.node_index for node in left], config.needed_nodes, leader)
    return _pool(left, config, leader)


def assign_roles(nodes: Sequence[RunNode], config: RunConfig, leader: int) -> list[RunNode]:
    """Return the nodes with the roles of a round that closes: the first ones in rank order are active, others spares.

    A pending node becomes a spare, whenever it arrives.

    >>> arrived = [RunNode(n, "", NodeState.ARRIVED) for n in range(3)]
    >>> [node.role.value for node in assign_roles(arrived, RunConfig(["a", "b", "c"], spares=1), 0)]
    ['active', 'active', 'spare']
    """
    chosen = available_pool(nodes, config, leader).node_indexes[: config.active_nodes]
    ranks = {node_index: rank for rank, node_index in enumerate(chosen)}
    return [
        node
        if node.role is Role.EXCLUDED
        else node.with_role(Role.ACTIVE, ranks[node.node_index])
        if node.node_index in ranks
        else node.with_role(Role.SPARE, None)
        for node in nodes
    ]


def late_nodes(active: Iterable[RunNode], leader: int) -> list[RunNode]:
    """Return the active nodes on which Ray has not started, the leader first; without those that wait for the head."""
    unready = [node for node in active if node.state is not NodeState.READY]
    started = [node for node in unready if node.state is NodeState.STARTING] or unready
    return sorted(started, key=lambda node: node.node_index != leader)
