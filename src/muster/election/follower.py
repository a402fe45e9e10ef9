"""One node under one leader after another: what it does next, from its start to its exit. No I/O, no clock.

The node does one thing at a time. Each effect is followed by one event, and each event returns the next effect:

    effect          the event that follows
    Poll            polled
    Connect         connected or connect_failed
    Follow          dismissed, refused, or lost (also if the leader has released this node)
    CleanUp         cleaned
    Campaign        claim_ended, when the claim has been made or has failed; the candidacy goes on beside it
    EndLeaderless   leaderless_ended
    Lead, ExitAgent none

    state       event            condition                                         effect            next state
    (start)     started          the first node                                    Campaign term 0   searching
                                 any other                                         Poll              searching
    searching   polled           there is an outcome                               ExitAgent         exited
                                 there are claims: the newest first, then older    Connect           searching
                                 ones, since the newest may have failed
                                 no claim, and no node before this one will lead   Campaign term 0   searching
                                 no leader for long                                EndLeaderless     leaving
                                 else, less and less often                         Poll              searching
                connect_failed   as polled, without that claim
    following   dismissed        the run is over                                   ExitAgent         exited
                refused                                                            ExitAgent         exited
                lost             this node leads: the leader ends this agent       Lead              leading
                                 else: no process of the term may be left          CleanUp           cleaning
    cleaning    cleaned          a membership is known                             Poll              electing
                                 none, and released: by a failed candidate         Poll              searching
                                 none, and lost after the node was stopped         Poll              leaving
                                 none, and lost                                    EndLeaderless     leaving
    electing    polled           there is an outcome                               ExitAgent         exited
                                 a lost leader is neither fenced nor gone          Poll              electing
                                 a newer claim that it has not tried               Connect           electing
                                 no majority for LEADER_SEARCH_TIMEOUT_S           EndLeaderless     leaving
                                 its turn has come, by its node number             Campaign          electing
                                 else                                              Poll              electing
                connect_failed   fewer than CONNECT_TRIES                          Connect           electing
                                 else: the candidate has failed                    Poll              electing
    leaving     leaderless_ended                                                   Poll              leaving
                polled           with the code of the outcome; without one,        ExitAgent         exited
                                 never with 0

    searching and electing: `connected` leads to following.

A member that has lost its leader is fenced: it waits FENCE_S from its last answer before it joins another one, since
the lost leader may act for that long. One that was released need not wait, nor one that finds the certificate of that
leader's end; `handover.py` says what follows for the next leader. A node with a lower index will not lead the
first term if the launcher reports that its task ended, or if its startup heartbeat has stopped (`leader_silence.py`).
Where it only does not come, one of the first nodes leads after the gather timeout. Excluded nodes are never candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Union

from muster.election.handover import RosterHistory, last_members
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, StartupHeartbeats
from muster.election.membership import Membership, first_membership
from muster.election.timing import FENCE_S
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FIRST_LEADER

SEARCH_MIN_POLL_S, SEARCH_MAX_POLL_S = 0.05, 1.0  # the first leader usually comes at once
FIRST_LEADER_TIMEOUT_S = 300.0  # beyond the gather timeout: then no leader will come
ELECTION_POLL_S = 0.3
CLAIM_POLL_S = 0.05  # when a claim is due, or was just made: it is visible at once on most filesystems
CLAIM_POLLS_PER_S = 2000  # of all members of a roster, which share a filesystem
CONNECT_TRIES = 3  # to reach a candidate
CLAIM_STAGGER_S = 2.0  # between the turns of two members, so that usually one candidate gets all members
LEADER_SEARCH_TIMEOUT_S = 60.0  # in which a fenced member must find a leader


# -- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Poll:
    """Read the run directory after this many seconds. `startup`: write a startup heartbeat and read the others too."""

    after: float
    startup: bool = False


@dataclass(frozen=True)
class Connect:
    """Connect to the candidate or leader of this term, after this many seconds."""

    term: int
    node_index: int
    after: float = 0.0


@dataclass(frozen=True)
class Follow:
    """Handle the messages of the connected leader until it is lost, releases or dismisses this node."""


@dataclass(frozen=True)
class CleanUp:
    """End every process of the run on this node, then remove the lease on them."""


@dataclass(frozen=True)
class Campaign:
    """Claim this term. `silent`: nodes that are passed over because their startup heartbeats have stopped.

    `in_use`: nodes that may run processes of earlier terms until they join; None: `handover.last_members`.
    """

    term: int
    membership: Membership
    silent: frozenset[int] = frozenset()
    in_use: frozenset[int] | None = None


@dataclass(frozen=True)
class EndLeaderless:
    """Record the run as failed for this reason, unless its end is recorded or another node leads it."""

    reason: str


@dataclass(frozen=True)
class Lead:
    """Stop following: this node leads, and the end of its term ends this agent."""


@dataclass(frozen=True)
class ExitAgent:
    """Exit with this code."""

    code: int


FollowerEffect = Union[Poll, Connect, Follow, CleanUp, Campaign, EndLeaderless, Lead, ExitAgent]


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartupView:
    """The startup heartbeats that could be read, by node index, and the nodes whose task has ended."""

    heartbeats: Mapping[int, object]
    ended: frozenset[int]


@dataclass(frozen=True)
class PollResult:
    """The node that claimed each term, and the exit code of the outcome; None if there is no outcome.

    `gone`: the terms whose claimant is certified to have ended, with all its processes.
    """

    claims: Mapping[int, int]
    outcome: int | None
    seconds: float = 0.0  # duration of the poll
    startup: StartupView | None = None
    gone: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LostLeader:
    """How a leader was lost. `membership`: the last one that this node received from any leader."""

    membership: Membership | None
    last_answer: float | None  # time of the last message to it; None if it has released this node
    how: str  # "the leader n1 fell silent"
    stopped: bool = False  # it had stopped this node: no process was left


class FollowerState(Enum):
    """The states of a node; see the module's table."""

    SEARCHING = "searching"
    FOLLOWING = "following"
    CLEANING = "cleaning"
    ELECTING = "electing"
    LEAVING = "leaving"
    LEADING = "leading"
    EXITED = "exited"


class FollowerElection:
    """The decisions of one node. All times are those of its clock."""

    def __init__(
        self, node_index: int, nodes: int, host: str, gather_timeout: float, history: RosterHistory | None = None
    ) -> None:
        """`nodes`: of the allocation. `gather_timeout`: seconds that the first leader waits for its nodes.

        `history`: of the memberships that this node receives, recorded by the caller; None: no certificates.
        """
        self._node_index, self._nodes, self._host = node_index, nodes, host
        self._gather_timeout, self._history = gather_timeout, history
        self.state = FollowerState.SEARCHING
        self.term, self.leader = -1, FIRST_LEADER  # that it connects to or follows
        # searching
        self._began = self._wait = 0.0
        self._heartbeats = StartupHeartbeats(SEARCH_MAX_POLL_S)
        self._view = PollResult({}, None)
        self._untried: list[int] = []  # claimed terms of this poll, the newest last
        # electing
        self._loss = LostLeader(None, None, "")
        self._membership: Membership | None = None  # of the last leader; None before there was one
        self._failed_term = -1  # the highest term that failed
        self._failed_leaders: set[int] = set()
        self._fences: dict[int, float] = {}  # by term: when its leader is fenced; also if that need not be awaited
        self._turns_start = self._deadline = 0.0
        self._turn: int | None = None  # cached
        self._tries = 0

    # -- the first leader -----------------------------------------------------------------------------------------

    def started(self, now: float) -> FollowerEffect:
        """Handle the start of the agent."""
        poll = self._search(now)
        return self._claim_first() if self._node_index == FIRST_LEADER else poll

    def polled(self, poll: PollResult, now: float) -> FollowerEffect:
        """Handle a reading of the run directory."""
        if self.state is FollowerState.LEAVING:
            return self._exit(INFRASTRUCTURE_FAILED if poll.outcome is None else poll.outcome)
        if poll.outcome is not None:
            return self._exit(poll.outcome)
        return self._elect(poll, now) if self.state is FollowerState.ELECTING else self._find(poll, now)

    def claim_ended(self, now: float) -> FollowerEffect:
        """Handle the end of a claim: it may be this node's own now, or another node's."""
        return Poll(CLAIM_POLL_S) if self.state is FollowerState.ELECTING else Poll(0.0)

    def _search(self, now: float) -> FollowerEffect:
        self.state = FollowerState.SEARCHING
        self._began, self._wait = now, SEARCH_MIN_POLL_S
        self._heartbeats = StartupHeartbeats(SEARCH_MAX_POLL_S)
        return Poll(0.0)

    def _find(self, poll: PollResult, now: float) -> FollowerEffect:
        self._view, self._untried = poll, sorted(poll.claims)
        if poll.startup is not None:
            self._heartbeats.observe(poll.startup.heartbeats, poll.seconds)
        return self._find_on(now)

    def _find_on(self, now: float) -> FollowerEffect:
        """Try the next claim of this poll; after the last one, decide what else to do."""
        if self._untried:
            term = self._untried.pop()
            return self._connect(term, self._view.claims[term])
        startup, searched = self._view.startup, now - self._began
        if startup is not None and not self._view.claims:
            silent = self._heartbeats.silent() - startup.ended
            gone = (silent | startup.ended).issuperset(range(self._node_index))
            if gone or searched > self._gather_timeout:
                return self._claim_first(frozenset(silent))
        timeout = self._gather_timeout + FIRST_LEADER_TIMEOUT_S
        if searched > timeout:
            return self._end(f"{self._host} found no leader for {timeout:g} s")
        return Poll(self._back_off(), startup=self._polls_heartbeats())

    def _back_off(self) -> float:
        """Return the seconds until the next poll, and double them for the one after."""
        after, self._wait = self._wait, min(2 * self._wait, SEARCH_MAX_POLL_S)
        return after

    def _polls_heartbeats(self) -> bool:
        """Return whether the next poll is to include heartbeats: those are SEARCH_MAX_POLL_S apart."""
        return self._wait >= SEARCH_MAX_POLL_S and self._node_index <= FIRST_LEADER_CANDIDATES

    def _claim_first(self, silent: frozenset[int] = frozenset()) -> FollowerEffect:
        return Campaign(0, first_membership(self._nodes, self._node_index), silent)

    # -- a leader ---------------------------------------------------------------------------------------------------

    def _connect(self, term: int, leader: int, after: float = 0.0) -> FollowerEffect:
        self.term, self.leader = term, leader
        return Connect(term, leader, after)

    def connected(self) -> FollowerEffect:
        """Handle a connection: from now on the leader may count this node."""
        self.state = FollowerState.FOLLOWING
        return Follow()

    def connect_failed(self, now: float) -> FollowerEffect:
        """Handle a candidate or leader that could not be reached."""
        if self.state is FollowerState.SEARCHING:
            return self._find_on(now)
        self._tries += 1
        if self._tries < CONNECT_TRIES:
            return self._connect(self.term, self.leader, ELECTION_POLL_S)
        self._candidate_failed(None, now)
        return Poll(ELECTION_POLL_S)

    def dismissed(self, code: int) -> FollowerEffect:
        """Handle the message of the leader that the run is over."""
        return self._exit(code)

    def refused(self) -> FollowerEffect:
        """Handle the message of the leader that it does not admit this node."""
        return self._exit(INFRASTRUCTURE_FAILED)

    def lost(self, loss: LostLeader, leading: bool, now: float) -> FollowerEffect:
        """Handle the loss of the leader. `leading`: a leader runs in this process."""
        self._loss = loss
        if leading and self.leader == self._node_index:
            self.state = FollowerState.LEADING
            return Lead()
        self.state = FollowerState.CLEANING
        if loss.membership is not None and loss.membership.term == self.term:
            self._leader_failed(loss.membership, loss.last_answer, now)
        elif self._membership is not None:
            self._candidate_failed(loss.last_answer, now)
        return CleanUp()

    # -- the next leader --------------------------------------------------------------------------------------------

    def cleaned(self, now: float) -> FollowerEffect:
        """Handle that no process of the run is left on this node."""
        if self._membership is not None:
            self.state = FollowerState.ELECTING
            return Poll(0.0)
        if self._loss.last_answer is None:
            return self._search(now)
        if self._loss.stopped:
            self.state = FollowerState.LEAVING
            return Poll(0.0)
        return self._end(self._loss.how)

    def _leader_failed(self, membership: Membership, last_answer: float | None, now: float) -> None:
        self._membership, self._failed_term = membership, membership.term
        self._failed_leaders, self._turn = {membership.leader}, None
        self._fence(last_answer)
        self._turns_start = now + self.fence_left(now)
        self._deadline = self._turns_start + LEADER_SEARCH_TIMEOUT_S

    def _candidate_failed(self, last_answer: float | None, now: float) -> None:
        """Handle a candidate that was unreachable, was lost (it may have won: fence it), or has retired."""
        self._failed_term = max(self._failed_term, self.term)
        self._failed_leaders.add(self.leader)
        self._turn = None
        self._fence(last_answer)
        self._turns_start = now + self.fence_left(now)

    def _fence(self, last_answer: float | None) -> None:
        """Begin to wait for the end of the lost leader's lease. `last_answer` is None if it has released this node."""
        if last_answer is not None:
            self._fences[self.term] = last_answer + FENCE_S

    def fence_left(self, now: float, gone: Collection[int] = ()) -> float:
        """Return the seconds until all lost leaders are fenced, except those of the terms `gone`."""
        return max(0.0, *(until - now for term, until in self._fences.items() if term not in gone), 0.0)

    def _elect(self, poll: PollResult, now: float) -> FollowerEffect:
        membership, claims = self._membership, poll.claims
        assert membership is not None
        if (left := self.fence_left(now, poll.gone)) > 0:
            return Poll(min(left, ELECTION_POLL_S))
        self._turns_start = min(self._turns_start, now)
        untried = [term for term in claims if term > self._failed_term and claims[term] not in membership.excluded]
        if untried:
            self._tries = 0
            return self._connect(max(untried), claims[max(untried)])
        if now >= self._deadline:
            return self._end(f"{self._loss.how}; no majority of the nodes is left")
        voter = self._node_index in membership.roster
        if voter and now >= self._turns_start + self._claim_turn(membership) * CLAIM_STAGGER_S:
            return Campaign(max([self._failed_term, *claims]) + 1, membership, in_use=self._in_use(poll, now))
        return Poll(min(max(CLAIM_POLL_S, len(membership.roster) / CLAIM_POLLS_PER_S), ELECTION_POLL_S))

    def _in_use(self, poll: PollResult, now: float) -> frozenset[int] | None:
        """Return the nodes that may run processes of earlier terms, now that all lost leaders are fenced or gone."""
        membership = self._membership
        assert membership is not None
        if self._history is None:
            return None
        if not poll.gone:
            return last_members(membership)
        gone = {poll.claims[term] for term in poll.gone if term in poll.claims}
        return self._history.in_use(self._nodes, now) - gone - {membership.leader}

    def _claim_turn(self, membership: Membership) -> int:
        """Return this member's position: by node number, failed leaders last. Positions past the deadline are cut."""
        if self._turn is None:
            ours = (self._node_index in self._failed_leaders, self._node_index)
            before = (node for node in membership.roster if (node in self._failed_leaders, node) < ours)
            self._turn = sum(1 for _ in islice(before, int(LEADER_SEARCH_TIMEOUT_S / CLAIM_STAGGER_S) + 1))
        return self._turn

    # -- the end ------------------------------------------------------------------------------------------------------

    def leaderless_ended(self) -> FollowerEffect:
        """Handle that the end of the run is recorded, or that another node leads it."""
        return Poll(0.0)

    def _end(self, reason: str) -> FollowerEffect:
        self.state = FollowerState.LEAVING
        return EndLeaderless(reason)

    def _exit(self, code: int) -> FollowerEffect:
        self.state = FollowerState.EXITED
        return ExitAgent(code)
