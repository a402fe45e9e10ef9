"""Which nodes may still run processes of earlier terms when a term begins. No I/O, no clock.

A member that has lost its leader waits FENCE_S before it joins another one, unless the run directory certifies that the
leader's agent has ended with all its processes (see agent/guardian.py). Neither says anything about other nodes: one
that stayed with the lost leader to its end, and is cut off from the new one, runs processes until its own lease ends,
up to LEASE_S later. So the first driver of a later term waits until one of these holds (LeaderLease):

    every node in use has joined the new leader: a node ends its processes before it joins
    FENCE_S have passed since the start of the term: every lease that the lost leader has renewed has ended

    certificates    nodes in use, without the lost leader
    none            the members of the last roster. Excluded nodes were lost, or stopped, before the fence began
    some            all nodes but those certified to be gone, and those excluded before the current cycle began, when
                    the leader waited for their processes, and FENCE_S ago. Nodes that were excluded later, or in
                    another term, may still be ending their processes
"""

from __future__ import annotations

from muster.election.membership import Membership
from muster.election.timing import FENCE_S


def last_members(membership: Membership) -> frozenset[int]:
    """Return the nodes, except the leader, that may run processes of the cycle of this membership."""
    return (membership.roster | membership.before) - membership.excluded - {membership.leader}


class RosterHistory:
    """The memberships that one node has received, with the times on its clock."""

    def __init__(self) -> None:
        self._last: Membership | None = None
        self._excluded_at: dict[int, float] = {}  # when this node learned it, in this term
        self._before_cycle: frozenset[int] = frozenset()  # excluded before the current cycle began

    def received(self, membership: Membership, now: float) -> None:
        """Record a membership. Those of one leader arrive in order; of a new leader the first ones may be missing."""
        last, self._last = self._last, membership
        if last is None or last.term != membership.term:
            self._excluded_at, self._before_cycle = {}, frozenset()
        elif last.cycle != membership.cycle:
            self._before_cycle = last.excluded
        for node_index in membership.excluded:
            self._excluded_at.setdefault(node_index, now)

    def in_use(self, nodes: int, now: float) -> frozenset[int]:
        """Return the nodes, of so many in the allocation, that may run processes of the run."""
        unused = {node for node in self._before_cycle if self._excluded_at[node] + FENCE_S <= now}
        return frozenset(range(nodes)) - unused
