"""A node's way from leader to leader: find the first, follow it, and when it is lost join or become another."""

from __future__ import annotations

from muster.election.campaign import Claim, Election, Join, Leave
from muster.election.leader_silence import (
    FIRST_LEADER_CANDIDATES,
    LeaderSilence,
    LeaderVerdict,
    RunDirectoryView,
    StartupHeartbeats,
)
from muster.election.membership import Membership, first_membership
from muster.lifecycle.config import FIRST_LEADER
from tests.sim.agent import Surroundings
from tests.sim.candidate import Seat
from tests.sim.host import Host
from tests.sim.invariants import LEFT_BEHIND
from tests.sim.leader import Lead
from tests.sim.member import Member
from tests.sim.network import End

LOOK_S = 0.5
JOIN_S = 120.0  # no leader for this long: nobody is going to come
WATCH_S = 2.0  # between looks of an agent that has no leader any more


class Heir(Member):
    """A whole agent."""

    def __init__(self, around: Surroundings, host: Host) -> None:
        super().__init__(around, host)
        self.candidate: Seat | None = None
        self.leader: Lead | None = None
        self._succession: Election | None = None
        self._heartbeats = StartupHeartbeats(LOOK_S)
        self._clean = True
        self._claiming = False
        self._until, self._tries = 0.0, 0

    def boot(self) -> None:
        self._until = self.now + JOIN_S
        if self.rank == FIRST_LEADER:
            self._campaign(0, first_membership(self.around.plan.nodes, self.rank))
        self._find()

    # -- the first ----------------------------------------------------------------------------------------------

    def _find(self) -> None:
        """The first leader, by the claims in the run directory."""
        files, asked, before = (
            self.around.files,
            self.now,
            range(self.rank if self.rank <= FIRST_LEADER_CANDIDATES else 0),
        )
        self.ask(
            lambda: (
                files.seen_claims(self.rank),
                files.seen_outcome(self.rank),
                files.seen_ends(self.rank),
                files.seen_heartbeats(before),
            ),
            lambda seen: self._found(self.now - asked, *seen),
        )

    def _found(
        self, seconds: float, claims: dict[int, int], outcome: str | None, ends: list[int], heartbeats: dict[int, int]
    ) -> None:
        self._heartbeats.look(heartbeats, seconds)
        if outcome is not None:
            self.leave(outcome)
        elif self.now >= self._until:
            self.leave("no leader came")
        elif claims:
            terms = sorted(claims, reverse=True)  # a claim may have come to nothing: then the one before it
            term = terms[self._tries % len(terms)]
            self._tries += 1
            self.join(term, claims[term])
        else:
            gone = self._heartbeats.silent().union(ends)
            if self.rank and not self._claiming and gone.issuperset(range(self.rank)):
                self._campaign(0, first_membership(self.around.plan.nodes, self.rank))
            self.after(LOOK_S, self._find)

    # -- the next -----------------------------------------------------------------------------------------------

    def loss_reason(self, end: End, owed: float | None) -> None:
        """Keep what succession has to know of the leader that was lost; clean this node; look for another."""
        self.end = None
        if not self._greeted and self._succession is None:
            self.after(LOOK_S, self._find)
            return
        self.say(
            f"has lost the leader of term {self.term}" if owed is not None else f"term {self.term} came to nothing"
        )
        if self.leader is not None and self.leads:
            return  # it was this node that led
        membership, now = self.membership, self.now
        if membership is not None and membership.term == self.term:
            self._succession = Election(self.rank, membership, now, owed)
        elif self._succession is not None:
            self._succession.candidate_failed(self.term, self.leader_rank, now, owed)
        if self._succession is not None and not end.closed:
            self.after(self._succession.fenced_at - now, end.close)
        self._clean = False
        self.after(self._end_processes(), self._cleaned)

    def _cleaned(self) -> None:
        self.host.end_all()
        self.host.clear()
        self._clean = True
        if self._succession is not None:
            self.after(max(0.0, self._succession.fenced_at - self.now), self._look)  # before that nothing is decided
        else:
            self._end_alone("the leader is gone")

    def _look(self) -> None:
        files = self.around.files
        self.ask(lambda: (files.seen_claims(self.rank), files.seen_outcome(self.rank)), self._decide)

    def _decide(self, seen: tuple[dict[int, int], str | None]) -> None:
        claims, outcome = seen
        assert self._succession is not None and self.membership is not None
        if outcome is not None:
            self.leave(outcome)
            return
        decision = self._succession.decide(self.now, self._clean, claims)
        if isinstance(decision, Join):
            self.join(decision.term, claims[decision.term])
            return
        if isinstance(decision, Leave):
            self._end_alone("no majority of the nodes is left")
            return
        if isinstance(decision, Claim) and not self._claiming:
            self._campaign(decision.term, self.membership)
        self.after(LOOK_S, self._look)

    # -- this node ----------------------------------------------------------------------------------------------

    def _campaign(self, term: int, membership: Membership) -> None:
        """Listen, then claim the term: who joins decides."""
        self.say(f"claims term {term}")
        self._claiming = True
        self.candidate = candidate = Seat(self, term, membership)
        self.ask(lambda: self.around.files.claim(term, self.rank), lambda ours: self._claimed(candidate, ours))

    def _claimed(self, candidate: Seat, ours: bool) -> None:
        self._claiming = False
        if ours:
            candidate.open()
        else:
            candidate.retire()

    def accept(self, end: End, term: int) -> bool:
        if self.candidate is None or self.candidate.term != term or self.candidate.closed:
            return False
        self.candidate.accept(end)
        return True

    def take(self, candidate: Seat) -> None:
        """The seat is won."""
        self.leader = candidate.leader = Lead(self, candidate)
        self.leader.start()

    # -- the end ------------------------------------------------------------------------------------------------

    def give_way(self) -> None:
        """This leader's lease is over."""
        self.end = None
        self._end_alone("the majority of the nodes is lost")

    def _end_alone(self, reason: str) -> None:
        """Record the end, unless another node does or still leads: then the run goes on without this node."""
        self._silence, self._stamp, self._looked = LeaderSilence(WATCH_S), 0.0, False
        self._listen_for_a_leader(reason)

    def _listen_for_a_leader(self, reason: str) -> None:
        files, asked = self.around.files, self.now
        self.ask(
            lambda: (files.newest(self.rank), files.seen_outcome(self.rank), files.seen_claims(self.rank)),
            lambda seen: self._hear(reason, self.now - asked, *seen),
        )

    def _hear(
        self, reason: str, seconds: float, status: tuple[int, bool], outcome: str | None, claims: dict[int, int]
    ) -> None:
        newest, written = status
        if outcome is not None:
            self.leave(outcome)
            return
        self._stamp = (
            self.now if written and self._stamp else self._stamp or 1.0
        )  # the first look has no other beside it
        verdict = self._silence.look(RunDirectoryView(False, newest, self._stamp, frozenset(claims)), seconds)
        if verdict is LeaderVerdict.UNKNOWN:
            self.after(WATCH_S, self._listen_for_a_leader, reason)
        elif verdict is LeaderVerdict.LED:
            self.leave(LEFT_BEHIND)
        else:
            self.ask(lambda: self.around.files.conclude(max(newest, 0), reason), self.leave)
