"""The configuration of a run's lifecycle, and the state in which a leader starts its term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.lifecycle.services import ServicePlan

FAILURE_GRACE_S = 2.0  # after a failure the driver's cluster is broken: a long grace would only hold the nodes
FINISH_TIMEOUT_S = 20.0  # beyond the driver's grace: to stop all nodes and collect their logs, in parallel

FIRST_LEADER = 0  # the node that leads a run first
EXTERNAL_LEADER = -1  # a leader that is not a node of the run: it closes rounds without taking part in them

FAIL, REPLACE, RESTART = "fail", "replace", "restart"  # reaction to the loss of an active node while the driver runs


def failover_allowed(nodes: int, on_node_loss: str, max_restarts: int) -> bool:
    """Return whether another node may lead after the leader is lost. One of two nodes is no majority."""
    return nodes > 2 and on_node_loss != FAIL and max_restarts > 0


@dataclass(frozen=True)
class RunConfig:
    """The nodes of the allocation, the number of spares, and the reaction to losses. Times are in seconds."""

    hosts: Sequence[str]  # by node number
    ray: bool = True
    gather_timeout: float = 600.0
    start_timeout: float = 300.0
    spares: int = 0
    last_call: float = 5.0  # time that a round with enough nodes waits for the others
    on_node_loss: str = FAIL
    max_restarts: int = 0
    restart_on_driver_failure: bool = False
    restart_grace: float = FAILURE_GRACE_S  # for the driver, before the next cycle
    no_progress_limit: int = 0  # end the run after this many consecutive cycles without progress; 0: never
    topology: bool = False  # assign ranks by the nodes' locations instead of their numbers
    segment: int = 1  # number of consecutive ranks that must be in one topology domain
    min_nodes: int | None = None  # a cycle may begin with so many active nodes; None: only with all of them
    gang: bool = False  # processes on all active nodes, whose number is then fixed during a cycle
    services: Sequence[ServicePlan] = ()
    without_ray: frozenset[int] = frozenset()  # nodes that do not belong to the Ray cluster; never the first leader

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    @property
    def failover(self) -> bool:
        return failover_allowed(self.nodes, self.on_node_loss, self.max_restarts)

    @property
    def member_leases(self) -> bool:
        """Whether members hold leases: when a cycle follows another one, no process of a lost node may be left."""
        return self.max_restarts > 0

    @property
    def active_nodes(self) -> int:
        """The number of active nodes in a cycle, if so many are available."""
        return len(self.hosts) - self.spares

    @property
    def needed_nodes(self) -> int:
        """The number of active nodes with which a cycle may begin."""
        return self.active_nodes if self.min_nodes is None else min(self.min_nodes, self.active_nodes)

    @property
    def elastic(self) -> bool:
        """Whether a cycle may begin with fewer active nodes than it can use."""
        return self.needed_nodes < self.active_nodes

    @property
    def has_surplus(self) -> bool:
        """Whether the allocation has more nodes than a cycle needs."""
        return self.needed_nodes < self.nodes

    @property
    def fixed_ranks(self) -> bool:
        """Whether each node's rank is its number, and therefore known before it arrives."""
        return not self.has_surplus and not self.topology


@dataclass(frozen=True)
class TermStart:
    """The state in which a leader starts its term. The defaults are those of the first leader."""

    term: int = 0
    leader: int = FIRST_LEADER  # node number
    cycle: int = 0  # the first cycle of this term
    excluded: frozenset[int] = frozenset()
    reason: str = ""  # why that cycle follows the previous one
    lost: int | None = None  # the previous leader
    handed_over: bool = False  # it stepped down before the driver of its last cycle ran
    handovers: int = 0  # earlier cycles that ended so: they count as no restart
    without_progress: int = 0  # consecutive cycles without progress before that cycle
    leaving: frozenset[int] = frozenset()  # nodes that programs have excluded, and that a former leader still used
    no_restart: str | None = None  # why a program has forbidden further cycles
    roster: frozenset[int] | None = None  # nodes that took part before; the others missed a round. None: all


FIRST_TERM_START = TermStart()
