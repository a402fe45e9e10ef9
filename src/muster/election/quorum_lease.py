"""The time until which a leader may act: the voters, their answers, and changes of the roster. No I/O, no clock.

A member is removed from the roster in one of two ways:

    cause                                    effect
    the launcher saw its process end         It stops counting at once, since it cannot follow another leader. (An ended
                                             connection is no proof: a firewall can end one between two live processes.)
    any other: it is silent, it failed,      A new roster is proposed. Until it is in force both rosters count: the
    or its connection ended                  leader needs half of each, a new leader more than half of each. It is in
                                             force once half of each know it: from then on every majority of the old
                                             roster includes a member that knows the new one.

A leader that has held its lease without interruption knows that no majority has left it. Before its first lease it may
have been left, and members that died since may have followed another leader: for the first lease the dead count.

A leader that was stopped longer than its lease is in the same position: it must acquire the lease again, from answers
to heartbeats that it sent after that, with the dead counted and its own node among those that answer. Half of every
roster then still followed it after the stop. They intersect every majority of another candidate, so none has won, and
from now on they are bound by the usual fence.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import replace

from muster.election.membership import Membership
from muster.election.timing import LEASE_S

NEVER = float("inf")


class QuorumLease:
    """The leader's lease. All times are those of the leader's clock."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership  # to be sent to the members
        self._proposed = membership.version  # the last version with new content
        self._known = -1  # the highest version that half of every roster know
        self._answered: dict[int, float] = {}  # send time of the last heartbeat that each member answered
        self._knows: dict[int, int] = {}  # the version that each member knows
        self._dead: set[int] = set()
        self._held = False  # the lease was acquired
        self._lapsed_at: float | None = None  # when this leader found that it was stopped longer than its lease
        self._quorums = [_Quorum(roster, self._left_out(), self._answered) for roster in membership.rosters]

    def answered(self, node_index: int, sent: float | None, version: int) -> bool:
        """Record a member's answer to a heartbeat sent at `sent`; None if it only reports the version that it knows.

        Return True if a roster is in force because of it: then send `membership` to the members.
        """
        before, knew = self._answered.get(node_index, -NEVER), self._knows.get(node_index, -1)
        if sent is not None and sent > before and (self._lapsed_at is None or sent >= self._lapsed_at):
            self._answered[node_index] = sent
            for quorum in self._quorums:
                quorum.answered(node_index, before, sent)
        if version <= knew:
            return False
        self._knows[node_index] = version
        if knew < self.membership.version <= version:
            for quorum in self._quorums:
                quorum.add_knowing(node_index)
        return self._settle()

    def answered_at(self, node_index: int) -> float:
        """Return when the last heartbeat that the member has answered was sent; -NEVER if there is none."""
        return self._answered.get(node_index, -NEVER)

    def died(self, node_index: int) -> bool:
        """Record that the launcher saw the member's process end. The result is that of `answered`."""
        self._dead.add(node_index)
        if self._held:
            for quorum in self._quorums:
                quorum.leave_out(node_index, self._answered.get(node_index, -NEVER))
        return self._settle()

    def acquire(self, now: float) -> bool:
        """Return whether the leader holds the lease. One that has expired is acquired again only after `lapse`."""
        if not self._held and self._is_first_in_force and self._is_at_home(now) and self.expires_at() > now:
            self._held, self._lapsed_at = True, None
            for quorum in self._quorums:
                for node_index in self._dead:
                    quorum.leave_out(node_index, self._answered.get(node_index, -NEVER))
        return self._held

    def lapse(self, now: float) -> None:
        """Handle that this leader was stopped until `now`, longer than its lease: no earlier answer counts any more."""
        self._held, self._lapsed_at = False, now
        self._answered.clear()
        self._quorums = [_Quorum(roster, self._left_out(), {}) for roster in self.membership.rosters]
        for node_index, version in self._knows.items():
            for quorum in self._quorums if version >= self.membership.version else ():
                quorum.add_knowing(node_index)

    @property
    def _is_first_in_force(self) -> bool:
        """Whether a membership of this leader has been in force: that is needed only for the first lease."""
        return self.settled or self._lapsed_at is not None

    def _is_at_home(self, now: float) -> bool:
        """Return whether the leader's own node still follows it. Only a stop makes that uncertain."""
        return self._lapsed_at is None or self.answered_at(self.membership.leader) + LEASE_S > now

    def propose(self, roster: Iterable[int], excluded: Iterable[int], cycle: int) -> bool:
        """Propose a membership; return True if it is to be sent. Only one change of the roster is pending at a time."""
        wanted = replace(self.membership, roster=frozenset(roster), excluded=frozenset(excluded), cycle=cycle)
        if wanted == self.membership or self.membership.before:
            return False
        before = self.membership.roster if self.membership.roster != wanted.roster else frozenset()
        self._set_membership(replace(wanted, version=self.membership.version + 1, before=before))
        self._proposed = self.membership.version
        self._settle()
        return True

    @property
    def settled(self) -> bool:
        """Whether every possible new leader would know the last proposal, including its cycle."""
        return self._known >= self._proposed

    def expires_at(self) -> float:
        """Return the time until which the leader may act, given the answers so far."""
        return min(quorum.answered_since for quorum in self._quorums) + LEASE_S

    def _left_out(self) -> set[int]:
        """Return the members that do not count in any roster."""
        return {self.membership.leader} | (self._dead if self._held else set())

    def _set_membership(self, membership: Membership) -> None:
        """Send a membership with a new version, which no member knows yet."""
        self.membership = membership
        self._quorums = [self._quorum_of(roster) for roster in membership.rosters]
        for quorum in self._quorums:
            quorum.forget_version()

    def _quorum_of(self, roster: frozenset[int]) -> _Quorum:
        for quorum in self._quorums:
            if quorum.roster == roster:
                return quorum
        return self._quorums[0].with_roster(roster, self._left_out(), self._answered)

    def _settle(self) -> bool:
        if self._known >= self.membership.version or not all(quorum.know for quorum in self._quorums):
            return False
        self._known = self.membership.version
        if not self.membership.before:
            return False
        self._set_membership(replace(self.membership, version=self.membership.version + 1, before=frozenset()))
        return True


class _Quorum:
    """The answers of one roster without the leader: enough members make half of the roster together with the leader.

    The times are kept sorted, since ten thousand members answer every heartbeat. A new roster starts from the times of
    the one before: among ten thousand members, a loss must not cost a sort.
    """

    def __init__(
        self,
        roster: frozenset[int],
        left_out: set[int],
        answered: Mapping[int, float],
        times: list[float] | None = None,
    ) -> None:
        """`left_out`: members that do not count. `times`: those of the others, sorted, if they are known already."""
        self.roster = roster
        self._others = set(roster - left_out)
        self._knowing: set[int] = set()  # members that know the current version
        self._times = sorted(answered.get(node, -NEVER) for node in self._others) if times is None else times

    def with_roster(self, roster: frozenset[int], left_out: set[int], answered: Mapping[int, float]) -> _Quorum:
        """Return the quorum of another roster."""
        times = self._times.copy()
        for node_index in self._others - roster:
            del times[bisect_left(times, answered.get(node_index, -NEVER))]
        for node_index in roster - self.roster - left_out:
            insort(times, answered.get(node_index, -NEVER))
        return _Quorum(roster, left_out, answered, times)

    @property
    def _needed(self) -> int:
        return len(self._others) // 2

    @property
    def know(self) -> bool:
        """Whether enough members know the current version."""
        return len(self._knowing) >= self._needed

    @property
    def answered_since(self) -> float:
        """The send time of the oldest heartbeat that counts; NEVER if the leader needs no answer."""
        return self._times[-self._needed] if self._needed else NEVER

    def forget_version(self) -> None:
        """Start to count again: there is a new version."""
        self._knowing = set()

    def add_knowing(self, node_index: int) -> None:
        if node_index in self._others:
            self._knowing.add(node_index)

    def leave_out(self, node_index: int, answered: float) -> None:
        """Stop to count a member, which answered at this time."""
        if node_index in self._others:
            self._others.discard(node_index)
            self._knowing.discard(node_index)
            del self._times[bisect_left(self._times, answered)]

    def answered(self, node_index: int, before: float, sent: float) -> None:
        if node_index in self._others:
            del self._times[bisect_left(self._times, before)]
            insort(self._times, sent)


def majority(votes: int, roster: frozenset[int]) -> bool:
    """Return whether this many members of a roster may elect a leader: more than half of it."""
    return 2 * votes > len(roster)
