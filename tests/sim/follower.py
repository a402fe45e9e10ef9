"""A node's way from lead to lead: find the first, follow it, and when it is lost join or become another."""

from __future__ import annotations

from muster.election.campaign import Claim, Join, Leave, Succession
from muster.election.leader_silence import STAND_INS, Sight, Silence, StartupHeartbeats, Verdict
from muster.election.membership import Charter, first_charter
from muster.lifecycle.config import FIRST_LEAD
from tests.sim.agent import Surroundings
from tests.sim.candidate import Seat
from tests.sim.host import Host
from tests.sim.invariants import LEFT_BEHIND
from tests.sim.leader import Lead
from tests.sim.member import Member
from tests.sim.network import End

LOOK_S = 0.5
JOIN_S = 120.0  # no lead for this long: nobody is going to come
WATCH_S = 2.0  # between looks of an agent that has no lead any more


class Heir(Member):
    """A whole agent."""

    def __init__(self, around: Surroundings, host: Host) -> None:
        super().__init__(around, host)
        self.seat: Seat | None = None
        self.lead: Lead | None = None
        self._succession: Succession | None = None
        self._heartbeats = StartupHeartbeats(LOOK_S)
        self._clean = True
        self._claiming = False
        self._until, self._tries = 0.0, 0

    def boot(self) -> None:
        self._until = self.now + JOIN_S
        if self.rank == FIRST_LEAD:
            self._stand(0, first_charter(self.around.plan.nodes, self.rank))
        self._find()

    # -- the first ----------------------------------------------------------------------------------------------

    def _find(self) -> None:
        """The first lead, by the claims in the run directory."""
        files, asked, before = self.around.files, self.now, range(self.rank if self.rank <= STAND_INS else 0)
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
            self.leave("no lead came")
        elif claims:
            terms = sorted(claims, reverse=True)  # a claim may have come to nothing: then the one before it
            term = terms[self._tries % len(terms)]
            self._tries += 1
            self.join(term, claims[term])
        else:
            gone = self._heartbeats.silent().union(ends)
            if self.rank and not self._claiming and gone.issuperset(range(self.rank)):
                self._stand(0, first_charter(self.around.plan.nodes, self.rank))
            self.after(LOOK_S, self._find)

    # -- the next -----------------------------------------------------------------------------------------------

    def parted(self, end: End, owed: float | None) -> None:
        """Keep what succession has to know of the lead that was lost; clean this node; look for another."""
        self.end = None
        if not self._greeted and self._succession is None:
            self.after(LOOK_S, self._find)
            return
        self.say(f"has lost the lead of term {self.term}" if owed is not None else f"term {self.term} came to nothing")
        if self.lead is not None and self.leads:
            return  # it was this node that led
        charter, now = self.charter, self.now
        if charter is not None and charter.term == self.term:
            self._succession = Succession(self.rank, charter, now, owed)
        elif self._succession is not None:
            self._succession.came_to_nothing(self.term, self.lead_rank, now, owed)
        if self._succession is not None and not end.closed:
            self.after(self._succession.fenced_at - now, end.close)
        self._clean = False
        self.after(self._end_processes(), self._cleaned)

    def _cleaned(self) -> None:
        self.host.end_all()
        self.host.lift()
        self._clean = True
        if self._succession is not None:
            self.after(max(0.0, self._succession.fenced_at - self.now), self._look)  # before that nothing is decided
        else:
            self._end_alone("the lead is gone")

    def _look(self) -> None:
        files = self.around.files
        self.ask(lambda: (files.seen_claims(self.rank), files.seen_outcome(self.rank)), self._decide)

    def _decide(self, seen: tuple[dict[int, int], str | None]) -> None:
        claims, outcome = seen
        assert self._succession is not None and self.charter is not None
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
            self._stand(decision.term, self.charter)
        self.after(LOOK_S, self._look)

    # -- this node ----------------------------------------------------------------------------------------------

    def _stand(self, term: int, charter: Charter) -> None:
        """Listen, then claim the term: who joins decides."""
        self.say(f"claims term {term}")
        self._claiming = True
        self.seat = seat = Seat(self, term, charter)
        self.ask(lambda: self.around.files.claim(term, self.rank), lambda ours: self._claimed(seat, ours))

    def _claimed(self, seat: Seat, ours: bool) -> None:
        self._claiming = False
        if ours:
            seat.open()
        else:
            seat.retire()

    def accept(self, end: End, term: int) -> bool:
        if self.seat is None or self.seat.term != term or self.seat.closed:
            return False
        self.seat.accept(end)
        return True

    def take(self, seat: Seat) -> None:
        """The seat is won."""
        self.lead = seat.lead = Lead(self, seat)
        self.lead.start()

    # -- the end ------------------------------------------------------------------------------------------------

    def give_way(self) -> None:
        """This lead's lease is over."""
        self.end = None
        self._end_alone("the majority of the nodes is lost")

    def _end_alone(self, reason: str) -> None:
        """Record the end, unless another node does or still leads: then the run goes on without this node."""
        self._silence, self._stamp, self._looked = Silence(WATCH_S), 0.0, False
        self._listen_for_a_lead(reason)

    def _listen_for_a_lead(self, reason: str) -> None:
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
        verdict = self._silence.look(Sight(False, newest, self._stamp, frozenset(claims)), seconds)
        if verdict is Verdict.UNKNOWN:
            self.after(WATCH_S, self._listen_for_a_lead, reason)
        elif verdict is Verdict.LED:
            self.leave(LEFT_BEHIND)
        else:
            self.ask(lambda: self.around.files.conclude(max(newest, 0), reason), self.leave)
