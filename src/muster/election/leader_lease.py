"""The lease that allows a leader to act, and the membership that it sends. No I/O, no clock.

    state       the leader                                                  until
    gathering   gathers its nodes; the membership it began with counts      the round closes: its first roster is sent
    first       may prepare a cycle, but not start its driver               it has the first lease; StepDown if not
    held        acts; supervisors kill its processes when the lease ends    the lease ends: StepDown
    lapsed      was stopped longer than its lease, and does not act; its    it has the lease again: held; StepDown if
                supervisors have stopped its processes                      not within LEASE_S, or if they are killed
    over        must not act: another node may lead                         (never)

    event           effects, in all states but over
    joined          SendMembership to the member, whose answers count from now on
    answered        RenewLease if the lease now ends at another time, AuthorizeCycle if a wanted cycle is known now, and
                    Broadcast if a roster is in force because of it
    died            the same, once the member has left the run as well. A report about a member that answers a later
                    heartbeat is wrong and does not count; nor does one about a node that has not joined
    run_changed     Broadcast of the new membership, if the nodes or the cycle have changed; the first one in any case.
                    Not while the run gathers and none was sent, not while a change is pending (it follows as soon as
                    that one is in force), and not once the run has an outcome. In a large run changes of nodes that
                    follow soon after another one are sent together
    cycle_wanted    AuthorizeCycle: at once, or as soon as every possible next leader would know of this cycle and no
                    process of an earlier term can be alive (`handover.py`)
    outcome_wanted  AuthorizeOutcome: at once, or as soon as no other node can lead and contradict it. Before the first
                    lease that takes the answers of half of the roster; or, in term 0, of all that have joined, since
                    only these know enough to become candidates. An outcome that a user asked for is not contradicted
    tick            StepDown if the lease has ended, or a wanted cycle or outcome has waited FIRST_LEASE_TIMEOUT_S for
                    the first lease; else AuthorizeCycle if it waited for earlier processes
    resumed         RequestAnswers, and lapsed, if the lease has ended while this node was stopped. What waits, waits
                    for as much longer. Renewing the lease on the leader's own word would be wrong: while it was stopped
                    the members may have elected another leader
    expired         StepDown: another clock has seen the end of the lease. Within LEASE_S after a stop: as resumed
    fenced          StepDown: supervisors have killed the processes, because the lease had ended

In a run without failover no other node can lead: there is no lease, and every cycle is authorized. A membership is sent
only if the leader steps down before its driver ran (`last_membership`).
`quorum_lease.py` counts the answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Union

from muster.election.handover import last_members
from muster.election.leased_run import LeasedRun
from muster.election.membership import Membership
from muster.election.quorum_lease import NEVER, QuorumLease
from muster.election.timing import FENCE_S, LEASE_S
from muster.lifecycle.states import ENDED, RunState

FIRST_LEASE_TIMEOUT_S = 30.0  # a leader that has no majority for its first driver, or its end, will not get one later
# Minimum time between two changes of the roster, for each thousand members. All members confirm a change twice, so 500
# losses that are sent one by one to 10,000 members would cost the leader ten million messages.
ROSTER_INTERVAL_PER_1000_S = 0.5


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
    """Let the lease of this node's processes end at this time; None: no other node can take over, so it has no end.

    `again`: it has expired while this node was stopped, and was acquired again.
    """

    until: float | None
    again: bool = False


@dataclass(frozen=True)
class AuthorizeCycle:
    """Start the driver of this cycle: every possible next leader knows of it."""

    cycle: int


@dataclass(frozen=True)
class AuthorizeOutcome:
    """Record the outcome of the run: no other node leads it."""


@dataclass(frozen=True)
class RequestAnswers:
    """Send a heartbeat to all connected members now: the leader was stopped, or its members were."""


@dataclass(frozen=True)
class StepDown:
    """Stop leading, without a message to the members: they may have left already."""

    reason: str


LeaseEffect = Union[Broadcast, SendMembership, RenewLease, AuthorizeCycle, AuthorizeOutcome, RequestAnswers, StepDown]


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
        self._proposed_at = -NEVER  # when the last change was proposed
        self._held = not self._failover
        self._until = NEVER  # the end of the lease
        self._recovers_until = -NEVER  # after a stop: until then a lease that ends may be acquired again
        self._lapsed = False
        self._joined: set[int] = set()
        self._unfenced = set[int]()  # nodes that may still have earlier processes
        if membership.term and self._failover:
            self._unfenced.update(last_members(membership) if in_use is None else in_use - {membership.leader})
        self._fenced_at: float | None = None  # when none of them has; None before the first member has joined
        self._reported: dict[int, float] = {}  # members whose end was reported, and when, until they have left
        self._wanted: tuple[int, float] | None = None  # the cycle whose driver is to start, and since when
        self._outcome_since: float | None = None  # since when the outcome is to be recorded
        self._candidates: set[int] = set()  # nodes that know enough to become candidates when they lose this leader
        self.over = False

    @property
    def membership(self) -> Membership:
        return self._quorum.membership

    def last_membership(self, successor: int) -> Membership:
        """Return the membership to send before this leader steps down because its node failed before the driver ran.

        It excludes the leader, from which the next one learns that no driver of this cycle has run. `successor`: the
        node that leads next if there is no election.
        """
        last = self.membership.without_leader()
        if not self._failover:
            last = self.membership.handed_to(successor, last.excluded | frozenset(self._run.excluded))
        return replace(last, cycle=self._run.cycle)

    # -- events -------------------------------------------------------------------------------------------------

    def joined(self, node_index: int, sent: float, version: int, now: float) -> list[LeaseEffect]:
        """Handle a new member. `sent`: when the message that it answered by joining was sent; `version`: it knows."""
        if not self._failover or self.over:
            return []
        self._joined.add(node_index)
        self._candidates.add(node_index)
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

    def outcome_wanted(self, now: float) -> list[LeaseEffect]:
        """Handle that the outcome of the run is to be recorded."""
        if self.over:
            return []
        self._outcome_since = now
        return self._check_end(now) or self._authorize(now)

    def tick(self, now: float) -> list[LeaseEffect]:
        """Handle the passing of time. To be called about every second."""
        return [] if self.over else self._check_end(now) or self._authorize(now)

    def resumed(self, seconds: float, now: float, expired: bool = False) -> list[LeaseEffect]:
        """Handle that this process was stopped for so many seconds until now. To be called before any other event.

        `expired`: another clock, which the supervisors use, has seen the end of the lease meanwhile.
        """
        if self.over:
            return []
        self._wait_longer(seconds)
        if now - seconds >= self._until and not self.lapsed:
            return self._step_down("its lease has expired")  # before the stop
        self._recovers_until = now + LEASE_S
        if self.lapsed or now >= self._until or (expired and self._until < NEVER):
            return self._lapse(now)
        return [RequestAnswers()]  # the leases of the members, or this one, may end soon

    def expired(self, now: float = NEVER) -> list[LeaseEffect]:
        """Handle that the lease of the processes has expired by another clock."""
        return self._end_lease(now)

    def fenced(self) -> list[LeaseEffect]:
        """Handle that supervisors have killed processes because the lease had expired."""
        return self._step_down("its lease has expired, and its processes were killed")

    @property
    def lapsed(self) -> bool:
        """Whether this leader was stopped longer than its lease, and must not act before it has the lease again."""
        return self._lapsed and not self.over

    # -- rules --------------------------------------------------------------------------------------------------

    def _wait_longer(self, seconds: float) -> None:
        """Let everything that waits wait for as much longer as this node was stopped."""
        if self._wanted is not None:
            self._wanted = self._wanted[0], self._wanted[1] + seconds
        if self._outcome_since is not None:
            self._outcome_since += seconds
        if self._fenced_at is not None:  # nodes that were stopped too have not killed their processes meanwhile
            self._fenced_at += seconds

    def _check_end(self, now: float) -> list[LeaseEffect]:
        """Return StepDown if the lease has ended, or was not acquired again. Others may have taken over."""
        if now >= (self._recovers_until if self._lapsed else self._until):
            return self._end_lease(now)
        waits = [since for since in (self._wanted and self._wanted[1], self._outcome_since) if since is not None]
        if not self._held and waits and now >= min(waits) + FIRST_LEASE_TIMEOUT_S:
            return self._step_down(f"it had no majority for {FIRST_LEASE_TIMEOUT_S:g} s")
        return []

    def _end_lease(self, now: float) -> list[LeaseEffect]:
        """Handle the end of the lease, or of the time in which it could be acquired again."""
        if self.over or self._lapsed or now >= self._recovers_until:
            return self._step_down("its lease has expired")
        return self._lapse(now)

    def _lapse(self, now: float) -> list[LeaseEffect]:
        self._held, self._lapsed = False, True
        self._quorum.lapse(now)
        return [RequestAnswers()]

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
            if self._quorum.answered_at(node_index) + LEASE_S > self._reported.pop(node_index):
                self._candidates.discard(node_index)  # it died before it could leave this leader for another one
            effects += self._in_force(self._quorum.died(node_index), now)
        return [*effects, *self._renew(now), *self._authorize(now)] if dead else []

    def _in_force(self, changed: bool, now: float) -> list[LeaseEffect]:
        """Send the membership if its roster has come into force, and propose what has changed meanwhile."""
        return [Broadcast(self.membership), *self._propose(now)] if changed else []

    def _propose(self, now: float) -> list[LeaseEffect]:
        """Propose the roster of the run. One change is pending at a time."""
        run = self._run
        if run.state in ENDED or run.outcome is not None or self.membership.before or self.lapsed:
            return []
        seen = run.membership_version, run.cycle
        if (run.state is RunState.GATHERING and not self._sent) or seen == self._seen or self._follows_too_soon(now):
            return []
        self._seen, self._proposed_at = seen, now
        proposed = self._quorum.propose(run.members, run.excluded, run.cycle)
        first, self._sent = not self._sent, True
        return [*([Broadcast(self.membership)] if proposed or first else []), *self._renew(now)]

    def _follows_too_soon(self, now: float) -> bool:
        """Return whether only nodes have changed, in a large run and soon after the last change: this one can wait."""
        interval = ROSTER_INTERVAL_PER_1000_S * (len(self.membership.roster) // 1000)
        return now < self._proposed_at + interval and self._run.cycle == self.membership.cycle

    def _renew(self, now: float) -> list[LeaseEffect]:
        """Renew the lease once a membership of this leader is in force; before that it runs no driver."""
        if not (self._held or (self._sent and self._quorum.acquire(now))):
            return []
        first, self._held = not self._held, True
        until = self._quorum.expires_at()
        if until == self._until and not first:
            return []
        again, self._lapsed = self._lapsed, False
        self._until = until
        renewed: list[LeaseEffect] = [RenewLease(None if until == NEVER else until, again)]
        return [*renewed, RequestAnswers(), *self._propose(now)] if again else renewed

    def _authorize(self, now: float) -> list[LeaseEffect]:
        if self._outcome_since is not None:
            return self._authorize_outcome(now)
        if self._wanted is None or not self._held or not self._handed_over(now):
            return []
        cycle, _ = self._wanted
        if self._failover and not (self._quorum.settled and self.membership.cycle == cycle):
            return []
        self._wanted = None
        return [AuthorizeCycle(cycle)]

    def _authorize_outcome(self, now: float) -> list[LeaseEffect]:
        if not (self._held or self._stopped or self._has_majority(now) or self._keeps_candidates(now)):
            return []
        self._outcome_since = None
        return [AuthorizeOutcome()]

    def _has_majority(self, now: float) -> bool:
        """Return whether half of the roster follows this leader. Its own agent may have joined another one."""
        return self._quorum.expires_at() > now and self.membership.leader in self._joined

    @property
    def _stopped(self) -> bool:
        return self._run.outcome is not None and self._run.outcome.state == "stopped"

    def _keeps_candidates(self, now: float) -> bool:
        """Return whether every node that could become a candidate still follows this leader of the first term."""
        others = self._candidates - {self.membership.leader}
        return not self.membership.term and all(self._quorum.answered_at(node) + LEASE_S > now for node in others)

    def _handed_over(self, now: float) -> bool:
        """Return whether no process of an earlier term can be left, on any node."""
        return not self._unfenced or (self._fenced_at is not None and now >= self._fenced_at)
