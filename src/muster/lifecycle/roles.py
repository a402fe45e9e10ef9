"""Admission of nodes, and their roles and logical ranks in a cycle. Pure functions over the list of nodes.

role       means                                           becomes
waiting    the round has not closed                        active | spare | excluded
active     has a logical rank and runs its part of Ray     waiting (next cycle) | excluded
spare      has no rank; includes nodes that arrive late    active, while healthy | waiting (next cycle) | excluded
excluded   failed or lost: never used again
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from muster.lifecycle.config import EXTERNAL_LEADER, RunConfig
from muster.lifecycle.states import CONNECTED, DEPARTED, NodeState
from muster.lifecycle.topology import UNKNOWN_LOCATION, NodeLocation, distance, rank_order, topology_order


class Role(str, Enum):
    """The role of a node in the current cycle."""

    WAITING = "waiting"
    ACTIVE = "active"
    SPARE = "spare"
    EXCLUDED = "excluded"


@dataclass(frozen=True)
class RunNode:
    """A node of the run, as known to the leader."""

    rank: int  # its number in the allocation; never changes, and identifies it in events, commands and log file names
    host: str
    state: NodeState = NodeState.EXPECTED
    role: Role = Role.WAITING
    logical: int | None = None  # its rank in the cycle; only active nodes have one
    location: NodeLocation = UNKNOWN_LOCATION
    unhealthy_reason: str | None = None  # result of its health check; None while it is healthy

    def with_role(self, role: Role, logical: int | None) -> RunNode:
        """Return the node in this role. `replace` would take three times as long for ten thousand nodes."""
        return RunNode(self.rank, self.host, self.state, role, logical, self.location, self.unhealthy_reason)

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


def initial_nodes(config: RunConfig, excluded: frozenset[int] = frozenset()) -> list[RunNode]:
    """Return the nodes before any has arrived. With fixed ranks every node is active from the start."""
    role = Role.ACTIVE if config.fixed_ranks else Role.WAITING
    return [
        RunNode(rank, host, NodeState.LOST, Role.EXCLUDED)
        if rank in excluded
        else RunNode(rank, host, role=role, logical=rank if config.fixed_ranks else None)
        for rank, host in enumerate(config.hosts)
    ]


def join_refusal(nodes: Sequence[RunNode], rank: int, host: str) -> str | None:
    """Return why an agent may not join as this node; None when it may.

    Two nodes on one host are accepted only if the allocation lists the host twice. A node that the run has excluded
    before it arrived may join, but is not used.
    """
    if rank not in range(len(nodes)):
        return f"{host} joined as node {rank}, but this run has only the nodes 0 to {len(nodes) - 1}"
    expected = nodes[rank]
    if expected.state is not NodeState.EXPECTED and expected.role is not Role.EXCLUDED:
        return f"{host} joined as node {rank}, but {expected.host} has joined as that node before"
    if host != expected.host:
        for node in nodes:
            if node.host == host and node.state is not NodeState.EXPECTED:
                return f"{host} joined as node {rank}, which should be {expected.host}; {host} is node {node.rank}"
    return None


@dataclass(frozen=True)
class NodePool:
    """Nodes that could have a rank, in the order of ranks. It is sufficient only with the leader, unless external."""

    ranks: Sequence[int]
    needed: int
    leader: int

    @property
    def has_leader(self) -> bool:
        return self.leader == EXTERNAL_LEADER or self.leader in self.ranks

    @property
    def sufficient(self) -> bool:
        return self.has_leader and len(self.ranks) >= self.needed


def _pool(nodes: Iterable[RunNode], config: RunConfig, leader: int) -> NodePool:
    locations = {node.rank: node.location for node in nodes}
    return NodePool(rank_order(locations, leader, config.segment), config.active_nodes, leader)


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
        return NodePool([node.rank for node in left], config.active_nodes, leader)
    return _pool(left, config, leader)


def assign_roles(nodes: Sequence[RunNode], config: RunConfig, leader: int) -> list[RunNode]:
    """Return the nodes with the roles of a round that closes: the first ones in rank order are active, others spares.

    A pending node becomes a spare, whenever it arrives.

    >>> arrived = [RunNode(n, "", NodeState.ARRIVED) for n in range(3)]
    >>> [node.role.value for node in assign_roles(arrived, RunConfig(["a", "b", "c"], spares=1), 0)]
    ['active', 'active', 'spare']
    """
    chosen = available_pool(nodes, config, leader).ranks[: config.active_nodes]
    ranks = {rank: logical for logical, rank in enumerate(chosen)}
    return [
        node
        if node.role is Role.EXCLUDED
        else node.with_role(Role.ACTIVE, ranks[node.rank])
        if node.rank in ranks
        else node.with_role(Role.SPARE, None)
        for node in nodes
    ]


def pick_replacement(nodes: Sequence[RunNode], lost: RunNode, segment: int) -> RunNode | None:
    """Return the spare to promote: the nearest to the lost node; with segments, only one of its domain."""
    spares = {node.rank: node for node in nodes if node.role is Role.SPARE and node.available}
    locations = {rank: node.location for rank, node in spares.items()}
    ordered = [spares[rank] for rank in topology_order(locations, EXTERNAL_LEADER)]
    if segment > 1:
        ordered = [node for node in ordered if node.location.domain == lost.location.domain]
    return min(ordered, key=lambda node: distance(node.location, lost.location), default=None)
