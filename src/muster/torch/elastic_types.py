"""What a job whose nodes come and go consists of (elastic.py): its plan, its states, its nodes, and the commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from muster.lifecycle.states import NodeState


class JobState(str, Enum):
    """What the job is doing; the table is in elastic.py."""

    GATHERING = "gathering"
    FORMING = "forming"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class ElasticPlan:
    """How many nodes take part, how many more are expected, and how long is waited for them."""

    least: int
    most: int
    spares: int = 0
    last_call: float = 5.0  # how long a round with enough nodes waits for the others
    gather_timeout: float = 900.0
    rejoin: float = 0.0  # how long a job that lost too many nodes waits for new ones
    hosts: tuple[str, ...] = ()  # where nodes are expected, if that is known

    @property
    def expected(self) -> int:
        return self.most + self.spares


@dataclass(frozen=True)
class Member:
    """A node that is connected."""

    key: int  # of its connection; never used twice
    host: str
    number: int | None = None  # its place in the order of nodes, where it has been given one
    state: NodeState = NodeState.ARRIVED
    rank: int | None = None  # in the round that forms or runs

    @property
    def order(self) -> tuple[bool, int, list[str | int], int]:
        """By number, else by host (n2 before n10), else by arrival."""
        parts: list[str | int] = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", self.host)]
        return self.number is None, self.number or 0, parts, self.key


@dataclass(frozen=True)
class Refuse:
    """This node is not let in, or not kept."""

    key: int
    why: str


@dataclass(frozen=True)
class Form:
    """The round has closed: give each of its nodes its rank, and the round's store."""

    round: int
    ranks: dict[int, int]  # by key


@dataclass(frozen=True)
class Go:
    """Every node of the round is ready: it runs."""

    round: int
    keys: tuple[int, ...]


@dataclass(frozen=True)
class CallBack:
    """These nodes are to end their workers and come back to the barrier."""

    round: int
    keys: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class End:
    """Tell these how the job has ended: `outcome` of the protocol."""

    keys: tuple[int, ...]


Command = Refuse | Form | Go | CallBack | End
