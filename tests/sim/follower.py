"""An agent that finds the first leader, follows it and, when it is lost, joins or becomes another."""

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
from tests.sim.agent import Environment
from tests.sim.candidate import Candidate
from tests.sim.host import Host
from tests.sim.invariants import LEFT_BEHIND
from tests.sim.leader import Leader
from tests.sim.member import Member
from tests.sim.network import ConnectionEnd

CLAIMS_POLL_S = 0.5
FIRST_LEADER_TIMEOUT_S = 120.0  # after which an agent without any leader leaves
LEADERLESS_POLL_S = 2.0  # of an agent whose leader is lost


class Follower(Member):
    """A complete agent."""

    def __init__(self, env: Environment, host: Host) -> None:
        super().__init__(env, host)
        self.candidate: Candidate | None = None
        self.leader: Leader | None = None
        self._election: Election | None = None
        self._heartbeats = StartupHeartbeats(CLAIMS_POLL_S)
        self._clean = True
        self._claiming = False
        self._until, self._tries = 0.0, 0

    def boot(self) -> None:
        self._until = self.now + FIRST_LEADER_TIMEOUT_S
        if self.rank == FIRST_LEADER:
            self._campaign(0, first_membership(self.env.plan.nodes, self.rank))
        self._find()

    # -- first leader -------------------------------------------------------------------------------------------

    def _find(self) -> None:
        """Find the first leader by the claims in the run directory."""
        files, asked = self.env.files, self.now
        before = range(self.rank if self.rank <= FIRST_LEADER_CANDIDATES else 0)
        self.access_files(
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
        self._heartbeats.observe(heartbeats, seconds)
        if outcome is not None:
            self.leave(outcome)
        elif self.now >= self._until:
            self.leave("no leader came")
        elif claims:
            terms = sorted(claims, reverse=True)  # the newest claim may have failed: alternate
            term = terms[self._tries % len(terms)]
            self._tries += 1
            self.join(term, claims[term])
        else:
            gone = self._heartbeats.silent().union(ends)
            if self.rank and not self._claiming and gone.issuperset(range(self.rank)):
                self._campaign(0, first_membership(self.env.plan.nodes, self.rank))
            self.after(CLAIMS_POLL_S, self._find)

    # -- next leader --------------------------------------------------------------------------------------------

    def on_leader_lost(self, end: ConnectionEnd, last_answer: float | None) -> None:
        """Start or continue an election, and clean this node."""
        self.end = None
        if not self._greeted and self._election is None:
            self.after(CLAIMS_POLL_S, self._find)
            return
        what = "has lost the leader of" if last_answer is not None else "sees the failed candidate of"
        self.log(f"{what} term {self.term}")
        if self.leader is not None and self.leads:
            return  # this node led
        membership, now = self.membership, self.now
        if membership is not None and membership.term == self.term:
            self._election = Election(self.rank, membership, now, last_answer)
        elif self._election is not None:
            self._election.candidate_failed(self.term, self.leader_rank, now, last_answer)
        if self._election is not None and not end.closed:
            self.after(self._election.fenced_at - now, end.close)
        self._clean = False
        self.after(self._end_processes(), self._cleaned)

    def _cleaned(self) -> None:
        self.host.end_all()
        self.host.clear()
        self._clean = True
        if self._election is not None:
            self.after(max(0.0, self._election.fenced_at - self.now), self._poll_claims)
        else:
            self._end_without_leader("the leader is gone")

    def _poll_claims(self) -> None:
        files = self.env.files
        self.access_files(lambda: (files.seen_claims(self.rank), files.seen_outcome(self.rank)), self._decide)

    def _decide(self, seen: tuple[dict[int, int], str | None]) -> None:
        claims, outcome = seen
        assert self._election is not None and self.membership is not None
        if outcome is not None:
            self.leave(outcome)
            return
        decision = self._election.decide(self.now, self._clean, claims)
        if isinstance(decision, Join):
            self.join(decision.term, claims[decision.term])
            return
        if isinstance(decision, Leave):
            self._end_without_leader("no majority of the nodes is left")
            return
        if isinstance(decision, Claim) and not self._claiming:
            self._campaign(decision.term, self.membership)
        self.after(CLAIMS_POLL_S, self._poll_claims)

    # -- candidate ----------------------------------------------------------------------------------------------

    def _campaign(self, term: int, membership: Membership) -> None:
        """Claim the term and accept members."""
        self.log(f"claims term {term}")
        self._claiming = True
        self.candidate = candidate = Candidate(self, term, membership)
        self.access_files(lambda: self.env.files.claim(term, self.rank), lambda ours: self._claimed(candidate, ours))

    def _claimed(self, candidate: Candidate, ours: bool) -> None:
        self._claiming = False
        if ours:
            candidate.open()
        else:
            candidate.retire()

    def accept(self, end: ConnectionEnd, term: int) -> bool:
        if self.candidate is None or self.candidate.term != term or self.candidate.closed:
            return False
        self.candidate.accept(end)
        return True

    def start_leading(self, candidate: Candidate) -> None:
        """Lead the term that the candidate won."""
        self.leader = candidate.leader = Leader(self, candidate)
        self.leader.start()

    # -- the end ------------------------------------------------------------------------------------------------

    def on_lease_lost(self) -> None:
        """Handle the loss of the lease as a leader."""
        self.end = None
        self._end_without_leader("the majority of the nodes is lost")

    def _end_without_leader(self, reason: str) -> None:
        """Record the end of the run, unless another node recorded it or still leads."""
        self._silence, self._stamp = LeaderSilence(LEADERLESS_POLL_S), 0.0
        self._poll_for_leader(reason)

    def _poll_for_leader(self, reason: str) -> None:
        files, asked = self.env.files, self.now
        self.access_files(
            lambda: (files.newest(self.rank), files.seen_outcome(self.rank), files.seen_claims(self.rank)),
            lambda seen: self._judge(reason, self.now - asked, *seen),
        )

    def _judge(
        self, reason: str, seconds: float, status: tuple[int, bool], outcome: str | None, claims: dict[int, int]
    ) -> None:
        newest, written = status
        if outcome is not None:
            self.leave(outcome)
            return
        # The first poll has no earlier stamp to differ from.
        self._stamp = self.now if written and self._stamp else self._stamp or 1.0
        verdict = self._silence.observe(RunDirectoryView(False, newest, self._stamp, frozenset(claims)), seconds)
        if verdict is LeaderVerdict.UNKNOWN:
            self.after(LEADERLESS_POLL_S, self._poll_for_leader, reason)
        elif verdict is LeaderVerdict.LED:
            self.leave(LEFT_BEHIND)
        else:
            self.access_files(lambda: self.env.files.conclude(max(newest, 0), reason), self.leave)
