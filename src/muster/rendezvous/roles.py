"""Who gets which role, and which logical rank. Pure: the list of nodes goes in, the list with its roles comes out.

role       means                                           becomes
waiting    the round has not closed                        active | spare | excluded
active     has a logical rank, its part of Ray runs        waiting (next cycle) | excluded
spare      healthy, warm, without a rank; late ones too    active | waiting (next cycle) | excluded
excluded   failed or lost: never used again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from muster.rendezvous.states import CONNECTED, DEPARTED, NodeState


class Role(str, Enum):
    """What a node is to the present cycle."""

    WAITING = "waiting"
    ACTIVE = "active"
    SPARE = "spare"
    EXCLUDED = "excluded"


@dataclass(frozen=True)
class Node:
    """One member as the lead knows it."""

    rank: int  # its number in the allocation, which never changes: events, commands and log files call it by that
    host: str
    state: NodeState = NodeState.EXPECTED
    role: Role = Role.WAITING
    logical: int | None = None  # its rank in the cycle; active nodes alone have one

    @property
    def here(self) -> bool:
        """Whether it can be given a role now."""
        return self.role is not Role.EXCLUDED and self.state in CONNECTED and self.state is not NodeState.FAILED

    @property
    def may_come(self) -> bool:
        """Whether it is not here, but still can be: it has not arrived, or is being cleaned for the next cycle."""
        return self.role is not Role.EXCLUDED and self.state in (NodeState.EXPECTED, NodeState.STOPPING)

    @property
    def unready(self) -> bool:
        """Whether the driver, or the end of a replacement, waits for it."""
        return self.role is Role.ACTIVE and self.state is not NodeState.READY

    @property
    def held(self) -> bool:
        """Whether its end has to be seen before the run is over; one that never joined holds nothing of it."""
        return self.state not in DEPARTED and self.state is not NodeState.EXPECTED


def newcomers(hosts: Sequence[str], spares: int, excluded: frozenset[int] = frozenset()) -> list[Node]:
    """Before anybody has arrived. Where there are no spares nothing is to be chosen: every role is known."""
    role = Role.WAITING if spares else Role.ACTIVE
    return [
        Node(rank, host, NodeState.LOST, Role.EXCLUDED) if rank in excluded
        else Node(rank, host, role=role, logical=None if spares else rank)
        for rank, host in enumerate(hosts)
    ]  # fmt: skip


def assigned(nodes: Sequence[Node], wanted: int, lead: int) -> list[Node]:
    """The roles of a round that closes: the lead, then the others by number, are active; the rest are spares.

    A node that still may come is a spare from then on, whenever it does.

    >>> [node.role.value for node in assigned([Node(n, "", NodeState.ARRIVED) for n in range(3)], 2, 0)]
    ['active', 'active', 'spare']
    """
    here = sorted((node.rank for node in nodes if node.here), key=lambda rank: (rank != lead, rank))
    ranks = {rank: logical for logical, rank in enumerate(here)}
    return [
        node if node.role is Role.EXCLUDED
        else replace(node, role=Role.ACTIVE, logical=ranks[node.rank]) if ranks.get(node.rank, wanted) < wanted
        else replace(node, role=Role.SPARE, logical=None)
        for node in nodes
    ]  # fmt: skip


def next_spare(nodes: Sequence[Node]) -> Node | None:
    """The one to be promoted: of those here, the lowest."""
    return next((node for node in nodes if node.role is Role.SPARE and node.here), None)


def usable(nodes: Sequence[Node]) -> int:
    """How many nodes a new cycle could have: everybody who has joined, is not excluded and has not left."""
    return sum(node.role is not Role.EXCLUDED for node in waiting_for(nodes))


def left(nodes: Sequence[Node]) -> int:
    """How many nodes a round that gathers can still have."""
    return sum(node.here or node.may_come for node in nodes)


def waiting_for(nodes: Sequence[Node]) -> list[Node]:
    """Those whose end has to be seen before the run is over."""
    return [node for node in nodes if node.held]
