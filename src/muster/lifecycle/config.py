"""What a run wants, as far as the protocol is concerned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.lifecycle.services import ServicePlan

FAILURE_GRACE_S = 2.0  # after a failure the driver's cluster is broken: a long grace would only hold the nodes
FINISH_TIMEOUT_S = 20.0  # beyond the driver's grace: to stop and to collect logs, on every node at once

FIRST_LEADER = 0  # the node that leads a run to begin with
OUTSIDE = -1  # a leader that is none of the nodes: it closes rounds without taking part in them

FAIL, REPLACE, RESTART = "fail", "replace", "restart"  # what follows the loss of an active node under the driver


def may_succeed(nodes: int, on_node_loss: str, max_restarts: int) -> bool:
    """Whether another node may lead when the leader is lost: of fewer than three nodes none has a majority then."""
    return nodes > 2 and on_node_loss != FAIL and max_restarts > 0


@dataclass(frozen=True)
class RunConfig:
    """The nodes of the allocation, how many of them are spares, and what may be done when one is lost."""

    hosts: Sequence[str]  # by number
    ray: bool = True
    gather_timeout: float = 600.0
    start_timeout: float = 300.0
    spares: int = 0
    last_call: float = 5.0  # how long a round with enough nodes waits for the others
    on_node_loss: str = FAIL
    max_restarts: int = 0
    restart_on_driver_failure: bool = False
    restart_grace: float = FAILURE_GRACE_S  # for the driver, before the next cycle
    no_progress_limit: int = 0  # this many cycles in a row without progress are the end; 0: never
    topology: bool = False  # ranks follow the nodes' places, not their numbers
    segment: int = 1  # so many ranks in a row lie in one domain
    services: Sequence[ServicePlan] = ()

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    @property
    def succession(self) -> bool:
        return may_succeed(self.nodes, self.on_node_loss, self.max_restarts)

    @property
    def wanted(self) -> int:
        """How many nodes are active in a cycle."""
        return len(self.hosts) - self.spares

    @property
    def foreknown(self) -> bool:
        """Whether every node's rank is known before it arrives: its number, with nothing to choose."""
        return not self.spares and not self.topology


@dataclass(frozen=True)
class TermStart:
    """Under what a leader begins: the first one with nothing, a later one with what the leader before it left."""

    term: int = 0
    leader: int = FIRST_LEADER  # its node's number
    cycle: int = 0  # the one it begins
    excluded: frozenset[int] = frozenset()
    reason: str = ""  # why that cycle follows the one before
    lost: int | None = None  # the leader before
    without_progress: int = 0  # how many cycles in a row before that one made no progress


FIRST_TERM_START = TermStart()
