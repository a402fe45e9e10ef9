"""The configuration, states, members and commands of an elastic torchrun job (see elastic.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from muster.lifecycle.states import NodeState


class JobState(str, Enum):
    """The state of the job; the table is in elastic.py."""

    GATHERING = "gathering"
    FORMING = "forming"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class ElasticConfig:
    """The number of nodes and spares, and the timeouts in seconds."""

    min_nodes: int
    max_nodes: int
    spares: int = 0
    last_call: float = 5.0  # time that a round with enough nodes waits for the others
    gather_timeout: float = 900.0
    rejoin_timeout: float = 0.0  # time that a job which lost too many nodes waits for new ones
    hosts: tuple[str, ...] = ()  # expected hosts, if known
    failover: bool = False  # another node may coordinate after the coordinator is lost

    @property
    def expected(self) -> int:
        return self.max_nodes + self.spares


@dataclass(frozen=True)
class Member:
    """A connected node."""

    key: int  # of its connection; never reused
    host: str
    node_index: int | None = None  # its position in the order of nodes, if it has one
    state: NodeState = NodeState.ARRIVED
    rank: int | None = None  # in the round that forms or runs

    @property
    def order(self) -> tuple[bool, int, list[str | int], int]:
        """A sort key: by node index, else by host (n2 before n10), else by arrival."""
        parts: list[str | int] = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", self.host)]
        return self.node_index is None, self.node_index or 0, parts, self.key


@dataclass(frozen=True)
class Refuse:
    """Reject a node, or remove it from the job."""

    key: int
    reason: str


@dataclass(frozen=True)
class FormRound:
    """Send each node of the closed round its rank and the round's store."""

    round: int
    ranks: dict[int, int]  # by key


@dataclass(frozen=True)
class StartRound:
    """Start the round: each of its nodes is ready."""

    round: int
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Recall:
    """Have these nodes end their workers and return to the barrier."""

    round: int
    keys: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class EndJob:
    """Send these nodes the outcome of the job."""

    keys: tuple[int, ...]


Command = Refuse | FormRound | StartRound | Recall | EndJob
