"""The lease that allows a leader to act, and the membership that it sends. No I/O, no clock.

    state       the leader                                                  until
    gathering   gathers its nodes; the membership it began with counts      the round closes: its first roster is sent
    first       may prepare a cycle, but not start its driver               it has the first lease; StepDown if not
    held        acts; supervisors kill its processes when the lease ends    the lease ends: StepDown
    over        must not act: another node may lead                         (never)

    event           effects, in all states but over
    joined          SendMembership to the member, whose answers count from now on
    answered        RenewLease if the lease now ends at another time, AuthorizeCycle if a wanted cycle is known now, and
                    Broadcast if a roster is in force because of it
    died            the same, once the member has left the run as well. A report about a member that answers a later
                    heartbeat is wrong and does not count; nor does one about a node that has not joined
    run_changed     Broadcast of the new membership, if the nodes or the cycle have changed; the first one in any case.
                    Not while the run gathers and none was sent, not while a change is pending (it follows as soon as
                    that one is in force), and not once the run has an outcome
    cycle_wanted    AuthorizeCycle: at once, or as soon as every possible next leader would know of this cycle and no
                    process of an earlier term can be alive (`handover.py`)
    tick            StepDown if the lease has ended, or a wanted cycle has waited FIRST_LEASE_TIMEOUT_S for the first
                    lease; else AuthorizeCycle if it waited for earlier processes
    expired         StepDown: a supervisor or another clock has seen the end of the lease

In a run without failover no other node can lead: there is no lease and no membership, and every cycle is authorized.
`quorum_lease.py` counts the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from muster.election.handover import last_members
from muster.election.leased_run import LeasedRun
from muster.election.membership import Membership
from muster.election.quorum_lease import NEVER, QuorumLease
from muster.election.timing import FENCE_S
from muster.lifecycle.states import ENDED, RunState

FIRST_LEASE_TIMEOUT_S = 30.0  # a leader that has no majority for its first driver in this time will not get one


@dataclass(frozen=True)
class Broadcast:
    """Send the membership to all connected members."""

    membership: Membership


@dataclass(frozen=True)
class SendMembership:
    """Send the membership to one member."""

    node_index: int
    membership: Membership


@dataclass(frozen=True)
class RenewLease:
    """Let the lease of this node's processes end at this time; None: no other node can take over, so it has no end."""

    until: float | None


@dataclass(frozen=True)
class AuthorizeCycle:
    """Start the driver of this cycle: every possible next leader knows of it."""

    cycle: int


@dataclass(frozen=True)
class StepDown:
    """Stop leading, without a message to the members: they may have left already."""

    reason: str


LeaseEffect = Union[Broadcast, SendMembership, RenewLease, AuthorizeCycle, StepDown]


class LeaderLease:
    """The lease of one term. All times are those of the leader's clock."""

    def __init__(self, run: LeasedRun, membership: Membership, in_use: frozenset[int] | None = None) -> None:
        """`run`: read, never changed. `membership`: the first of this term.

        `in_use`: nodes that may run processes of earlier terms until they join; None: `last_members`.
        """
        self._run, self._failover = run, run.config.failover
        self._quorum = QuorumLease(membership)
        self._seen: tuple[int, int] | None = None  # version of the run's nodes, and cycle, of the last proposal
        self._sent = False  # the members have a membership from this leader
        self._held = not self._failover
        self._until = NEVER  # the end of the lease
        self._joined: set[int] = set()
        self._unfenced = set[int]()  # nodes that may still have earlier processes
        if membership.term:
            self._unfenced.update(last_members(membership) if in_use is None else in_use - {membership.leader})
        self._fenced_at: float | None = None  # when none of them has; None before the first member has joined
        self._reported: dict[int, float] = {}  # members whose end was reported, and when, until they have left
        self._wanted: tuple[int, float] | None = None  # the cycle whose driver is to start, and since when
        self.over = False

    @property
    def membership(self) -> Membership:
        return self._quorum.membership

    # -- events -------------------------------------------------------------------------------------------------

    def joined(self, node_index: int, sent: float, version: int, now: float) -> list[LeaseEffect]:
        """Handle a new member. `sent`: when the message that it answered by joining was sent; `version`: it knows."""
        if not self._failover or self.over:
            return []
        self._joined.add(node_index)
        self._unfenced.discard(node_index)
        self._fenced_at = now + FENCE_S if self._fenced_at is None else self._fenced_at
        effects = self._in_force(self._quorum.answered(node_index, sent, version), now)
        return [*effects, SendMembership(node_index, self.membership), *self._authorize(now)]

    def answered(self, node_index: int, sent: float | None, version: int, now: float) -> list[LeaseEffect]:
        """Handle an answer to the heartbeat sent at `sent`; None if it only reports the version that it knows."""
        if not self._failover or self.over:
            return []
        if ended := self._check_end(now):
            return ended
        if self._reported and sent is not None and sent > self._reported.get(node_index, NEVER):
            del self._reported[node_index]
        effects = self._in_force(self._quorum.answered(node_index, sent, version), now)
        return [*effects, *self._renew(now), *self._authorize(now)]

    def died(self, node_index: int, now: float) -> list[LeaseEffect]:
        """Handle a report of the launcher that the process of a member has ended. It may name a wrong node."""
        if not self._failover or self.over:
            return []
        if ended := self._check_end(now):
            return ended
        if node_index in self._joined:
            self._reported[node_index] = now
        return self._count_dead(now)

    def run_changed(self, now: float) -> list[LeaseEffect]:
        """Handle any event of the run: its nodes or its cycle may have changed."""
        if not self._failover or self.over:
            return []
        return self._check_end(now) or [*self._count_dead(now), *self._propose(now), *self._authorize(now)]

    def cycle_wanted(self, cycle: int, now: float) -> list[LeaseEffect]:
        """Handle that the driver of this cycle is to start. A newer cycle replaces one that was not authorized."""
        if self.over:
            return []
        self._wanted = cycle, now
        return self._authorize(now)

    def tick(self, now: float) -> list[LeaseEffect]:
        """Handle the passing of time. To be called about every second."""
        return [] if self.over else self._check_end(now) or self._authorize(now)

    def expired(self) -> list[LeaseEffect]:
        """Handle that the lease of the processes has expired."""
        return self._step_down("its lease has expired")

    # -- rules --------------------------------------------------------------------------------------------------

    def _check_end(self, now: float) -> list[LeaseEffect]:
        """Return StepDown if the lease has ended. An ended lease is never renewed: others may have taken over."""
        if now >= self._until:
            return self._step_down("its lease has expired")
        if not self._held and self._wanted is not None and now >= self._wanted[1] + FIRST_LEASE_TIMEOUT_S:
            return self._step_down(f"it had no majority for {FIRST_LEASE_TIMEOUT_S:g} s")
        return []

    def _step_down(self, reason: str) -> list[LeaseEffect]:
        if self.over:
            return []
        self.over = True
        return [StepDown(reason)]

    def _count_dead(self, now: float) -> list[LeaseEffect]:
        """Count the members as dead that have left the run and whose end the launcher reported."""
        dead = [node_index for node_index in self._reported if self._run.has_left(node_index)]
        effects: list[LeaseEffect] = []
        for node_index in dead:
            del self._reported[node_index]
            effects += self._in_force(self._quorum.died(node_index), now)
        return [*effects, *self._renew(now), *self._authorize(now)] if dead else []

    def _in_force(self, changed: bool, now: float) -> list[LeaseEffect]:
        """Send the membership if its roster has come into force, and propose what has changed meanwhile."""
        return [Broadcast(self.membership), *self._propose(now)] if changed else []

    def _propose(self, now: float) -> list[LeaseEffect]:
        """Propose the roster of the run. One change is pending at a time."""
        run = self._run
        if run.state in ENDED or run.outcome is not None or self.membership.before:
            return []
        seen = run.membership_version, run.cycle
        if (run.state is RunState.GATHERING and not self._sent) or seen == self._seen:
            return []
        self._seen = seen
        proposed = self._quorum.propose(run.members, run.excluded, run.cycle)
        first, self._sent = not self._sent, True
        return [*([Broadcast(self.membership)] if proposed or first else []), *self._renew(now)]

    def _renew(self, now: float) -> list[LeaseEffect]:
        """Renew the lease once a membership of this leader is in force; before that it runs no driver."""
        if not (self._held or (self._sent and self._quorum.acquire(now))):
            return []
        first, self._held = not self._held, True
        until = self._quorum.expires_at()
        if until == self._until and not first:
            return []
        self._until = until
        return [RenewLease(None if until == NEVER else until)]

    def _authorize(self, now: float) -> list[LeaseEffect]:
        if self._wanted is None or not self._held or not self._handed_over(now):
            return []
        cycle, _ = self._wanted
        if self._failover and not (self._quorum.settled and self.membership.cycle == cycle):
            return []
        self._wanted = None
        return [AuthorizeCycle(cycle)]

    def _handed_over(self, now: float) -> bool:
        """Return whether no process of an earlier term can be left, on any node."""
        return not self._unfenced or (self._fenced_at is not None and now >= self._fenced_at)
