"""Who gets which role, and which logical rank. Pure: the list of nodes goes in, the list with its roles comes out.

role       means                                           becomes
waiting    the round has not closed                        active | spare | excluded
active     has a logical rank, its part of Ray runs        waiting (next cycle) | excluded
spare      warm, without a rank; late ones too             active, while healthy | waiting (next cycle) | excluded
excluded   failed or lost: never used again
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from muster.lifecycle.config import OUTSIDE, RunConfig
from muster.lifecycle.states import CONNECTED, DEPARTED, NodeState
from muster.lifecycle.topology import NOWHERE, NodeLocation, distance, in_order, seats


class Role(str, Enum):
    """What a node is to the present cycle."""

    WAITING = "waiting"
    ACTIVE = "active"
    SPARE = "spare"
    EXCLUDED = "excluded"


@dataclass(frozen=True)
class RunNode:
    """One member as the leader knows it."""

    rank: int  # its number in the allocation, which never changes: events, commands and log files call it by that
    host: str
    state: NodeState = NodeState.EXPECTED
    role: Role = Role.WAITING
    logical: int | None = None  # its rank in the cycle; active nodes alone have one
    place: NodeLocation = NOWHERE
    unhealthy_reason: str | None = None  # what its own check found; None while it is healthy

    def having(self, role: Role, logical: int | None) -> RunNode:
        """The same node in this role; `replace` would take three times as long, for ten thousand of them."""
        return RunNode(self.rank, self.host, self.state, role, logical, self.place, self.unhealthy_reason)

    @property
    def fit(self) -> bool:
        """Whether nothing speaks against using it."""
        return self.role is not Role.EXCLUDED and self.unhealthy_reason is None

    @property
    def here(self) -> bool:
        """Whether it can be given a rank now."""
        return self.fit and self.state in CONNECTED and self.state is not NodeState.FAILED

    @property
    def may_come(self) -> bool:
        """Whether it is not here, but still can be: it has not arrived, or is being cleaned for the next cycle."""
        return self.fit and self.state in (NodeState.EXPECTED, NodeState.STOPPING)

    @property
    def unready(self) -> bool:
        """Whether the driver, or the end of a replacement, waits for it."""
        return self.role is Role.ACTIVE and self.state is not NodeState.READY

    @property
    def serves(self) -> bool:
        """Whether it has its rank's services: from when it has a rank and is there, until it is told to stop."""
        return self.role is Role.ACTIVE and self.state in CONNECTED and self.state is not NodeState.FAILED

    @property
    def held(self) -> bool:
        """Whether its end has to be seen before the run is over; one that never joined holds nothing of it."""
        return self.state not in DEPARTED and self.state is not NodeState.EXPECTED


def newcomers(plan: RunConfig, excluded: frozenset[int] = frozenset()) -> list[RunNode]:
    """Before anybody has arrived. Where nothing is to be chosen every role is known."""
    role = Role.ACTIVE if plan.foreknown else Role.WAITING
    return [
        RunNode(rank, host, NodeState.LOST, Role.EXCLUDED)
        if rank in excluded
        else RunNode(rank, host, role=role, logical=rank if plan.foreknown else None)
        for rank, host in enumerate(plan.hosts)
    ]


@dataclass(frozen=True)
class Supply:
    """Nodes that could have a rank, in the order of ranks. The leader is always one of them, unless it is none at
    all."""

    seats: Sequence[int]
    wanted: int
    leader: int

    @property
    def has_leader(self) -> bool:
        return self.leader == OUTSIDE or self.leader in self.seats

    @property
    def enough(self) -> bool:
        return self.has_leader and len(self.seats) >= self.wanted


def supply(nodes: Iterable[RunNode], plan: RunConfig, leader: int) -> Supply:
    return Supply(seats({node.rank: node.place for node in nodes}, leader, plan.segment), plan.wanted, leader)


def present(nodes: Sequence[RunNode], plan: RunConfig, leader: int) -> Supply:
    """What a round that closes now would have."""
    return supply((node for node in nodes if node.here), plan, leader)


def usable(nodes: Sequence[RunNode], plan: RunConfig, leader: int) -> Supply:
    """What a new cycle could have: everybody who has joined, is fit and has not left."""
    return supply((node for node in nodes if node.held and node.fit), plan, leader)


def possible(nodes: Sequence[RunNode], plan: RunConfig, leader: int) -> Supply:
    """What a round that gathers can still have. While one has yet to say where it is, only the number counts."""
    left = [node for node in nodes if node.here or node.may_come]
    if any(node.state is NodeState.EXPECTED for node in left):
        return Supply([node.rank for node in left], plan.wanted, leader)
    return supply(left, plan, leader)


def assigned(nodes: Sequence[RunNode], plan: RunConfig, leader: int) -> list[RunNode]:
    """The roles of a round that closes: the leader, then the others in their order, are active; the rest are spares.

    A node that still may come is a spare from then on, whenever it does.

    >>> came = [Node(n, "", NodeState.ARRIVED) for n in range(3)]
    >>> [node.role.value for node in assigned(came, Plan(["a", "b", "c"], spares=1), 0)]
    ['active', 'active', 'spare']
    """
    ranks = {rank: logical for logical, rank in enumerate(present(nodes, plan, leader).seats[: plan.wanted])}
    return [
        node
        if node.role is Role.EXCLUDED
        else node.having(Role.ACTIVE, ranks[node.rank])
        if node.rank in ranks
        else node.having(Role.SPARE, None)
        for node in nodes
    ]


def pick_replacement(nodes: Sequence[RunNode], lost: RunNode, segment: int) -> RunNode | None:
    """The spare to be promoted: the nearest to the lost node, of these the first; with segments of its domain alone."""
    spares = {node.rank: node for node in nodes if node.role is Role.SPARE and node.here}
    ordered = [spares[rank] for rank in in_order({rank: node.place for rank, node in spares.items()}, OUTSIDE)]
    if segment > 1:
        ordered = [node for node in ordered if node.place.domain == lost.place.domain]
    return min(ordered, key=lambda node: distance(node.place, lost.place), default=None)
