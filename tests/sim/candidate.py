"""A claimed term: listen, see who joins, and leader when a majority has; from then on the leader's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.election.campaign import ELECT_S, Campaign
from muster.election.membership import Membership
from muster.lifecycle.config import TermStart
from tests.sim.network import End

if TYPE_CHECKING:
    from tests.sim.follower import Heir
    from tests.sim.leader import Lead

BEAT_S = 2.5


class Seat:
    """The leader that takes it finds everybody who has joined by then in `ends`."""

    def __init__(self, agent: Heir, term: int, membership: Membership) -> None:
        self._agent, self.term = agent, term
        self.closed = self.ours = False
        self.leader: Lead | None = None
        self.ends: dict[int, End] = {}
        self.spoken: dict[int, float] = {}  # when we sent what each has answered last
        self.known: dict[int, Membership | None] = {}  # what each knew when it came
        self._echo: dict[int, float] = {}  # the time in what we heard last of each, by its own clock
        self._came: set[int] = set()
        self.term_start, self.membership = (
            TermStart(leader=agent.rank),
            membership,
        )  # as term 0 begins; a later one has to win
        self._candidacy = Campaign(term, agent.rank, membership)
        self._nonces: dict[int, float] = {}

    def open(self) -> None:
        """The term is ours."""
        self.ours = True
        self._agent.around.watch.note("claim")
        self._beat()
        if self.term:
            self._agent.after(ELECT_S, self._give_up)
            self._look()
        else:
            self._agent.take(self)

    def accept(self, end: End) -> None:
        """Whatever comes back was said after this."""
        end.party = self
        self._nonces[id(end)] = self._agent.now
        end.send("nonce")

    def _beat(self) -> None:
        if not self.closed:
            now = self._agent.now
            for rank, end in self.ends.items():
                end.send("beat", now, self._echo[rank])
            self._agent.after(BEAT_S, self._beat)

    def tell(self, membership: Membership, *ranks: int) -> None:
        """These, or everybody."""
        for rank in ranks or self.ends:
            self.ends[rank].send("charter", membership, self._echo[rank])

    # -- who joins ----------------------------------------------------------------------------------------------

    def heard(self, end: End, message: tuple[Any, ...]) -> None:
        end.wait = self._agent.now
        kind = message[0]
        if kind == "answer":
            _, sent, version, self._echo[end.rank] = message
            self._answered(end.rank, sent, version)
        elif kind == "greeting":
            self._greeted(end, *message[1:])
        elif self.leader is not None:
            self.leader.take(end.rank, message)

    def _greeted(self, end: End, rank: int, membership: Membership | None, time: float) -> None:
        spoken = self._nonces.pop(id(end))
        if self.closed or rank in self._came:
            end.close()
            return
        self._came.add(rank)
        end.rank, self.ends[rank], self._echo[rank] = rank, end, time
        self.spoken[rank], self.known[rank] = spoken, membership
        self._agent.listen(end, self._silent)
        if self.leader is not None:
            self.leader.joined(rank, end)
        else:
            self._candidacy.joins(rank, membership or self.membership, spoken)
            self._look()

    def _answered(self, rank: int, sent: float | None, version: int) -> None:
        if self.leader is not None:
            self.leader.answered(rank, sent, version)
        elif sent is not None and rank in self.ends:
            self.spoken[rank] = sent

    def ended(self, end: End) -> None:
        self._lost(end, silent=False)

    def _silent(self, end: End) -> None:
        self._lost(end, silent=True)
        end.close()

    def _lost(self, end: End, silent: bool) -> None:
        if self.ends.get(end.rank) is not end or self.closed:
            return
        del self.ends[end.rank]
        self._candidacy.leaves(end.rank)
        if silent:
            self._agent.around.watch.called_silent(self._agent, end.rank, self.term)
        if self.leader is not None:
            self.leader.lost(end.rank, silent)

    # -- winning ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self.ours and self.leader is None and not self.closed and self._candidacy.won:
            self._agent.say(f"wins term {self.term} with {sorted(self.ends)}")
            self.term_start, self.membership = (
                self._candidacy.term_start("the leader was lost"),
                self._candidacy.new_membership(),
            )
            self._agent.take(self)

    def _give_up(self) -> None:
        if self.leader is None and not self.closed:
            self.retire()

    def retire(self) -> None:
        """Those who joined owe us nothing."""
        self.closed = True
        for end in self.ends.values():
            end.send("retire")
            end.close()

    def close_all(self) -> None:
        """End every connection without a word."""
        self.closed = True
        for end in self.ends.values():
            end.close()
