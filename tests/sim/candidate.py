"""A candidate's term: it leads when a majority of the members has joined; then it holds the leader's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.election.campaign import ELECTION_TIMEOUT_S, Campaign
from muster.election.membership import Membership
from muster.lifecycle.config import TermStart
from tests.sim.network import ConnectionEnd

if TYPE_CHECKING:
    from tests.sim.follower import Follower
    from tests.sim.leader import Leader

HEARTBEAT_INTERVAL_S = 2.5


class Candidate:
    """A claimed term and the connections of the members that joined."""

    def __init__(self, agent: Follower, term: int, membership: Membership) -> None:
        self._agent, self.term = agent, term
        self.closed = self.ours = False
        self.leader: Leader | None = None
        self.ends: dict[int, ConnectionEnd] = {}
        self.last_sent: dict[int, float] = {}  # send time of the last message that each has answered
        self.known: dict[int, Membership | None] = {}  # the membership that each knew when it joined
        self._echo: dict[int, float] = {}  # the time in the last message of each, by its clock
        self._came: set[int] = set()
        # The values of term 0; a later term gets others when it wins.
        self.term_start, self.membership = TermStart(leader=agent.rank), membership
        self._campaign = Campaign(term, agent.rank, membership)
        self._nonces: dict[int, float] = {}

    def open(self) -> None:
        """Begin after the claim succeeded."""
        self.ours = True
        self._agent.env.checker.note("claim")
        self._beat()
        if self.term:
            self._agent.after(ELECTION_TIMEOUT_S, self._give_up)
            self._check_won()
        else:
            self._agent.start_leading(self)

    def accept(self, end: ConnectionEnd) -> None:
        """Send a nonce, so that the greeting is known to be sent later."""
        end.receiver = self
        self._nonces[id(end)] = self._agent.now
        end.send("nonce")

    def _beat(self) -> None:
        if not self.closed:
            now = self._agent.now
            for rank, end in self.ends.items():
                end.send("beat", now, self._echo[rank])
            self._agent.after(HEARTBEAT_INTERVAL_S, self._beat)

    def send_membership(self, membership: Membership, *ranks: int) -> None:
        """Send the membership to these members, or to all."""
        for rank in ranks or self.ends:
            self.ends[rank].send("charter", membership, self._echo[rank])

    # -- members ------------------------------------------------------------------------------------------------

    def on_message(self, end: ConnectionEnd, message: tuple[Any, ...]) -> None:
        end.wait = self._agent.now
        kind = message[0]
        if kind == "answer":
            _, sent, version, self._echo[end.rank] = message
            self._answered(end.rank, sent, version)
        elif kind == "greeting":
            self._greeted(end, *message[1:])
        elif self.leader is not None:
            self.leader.on_message(end.rank, message)

    def _greeted(self, end: ConnectionEnd, rank: int, membership: Membership | None, time: float) -> None:
        last_sent = self._nonces.pop(id(end))
        if self.closed or rank in self._came:
            end.close()
            return
        self._came.add(rank)
        end.rank, self.ends[rank], self._echo[rank] = rank, end, time
        self.last_sent[rank], self.known[rank] = last_sent, membership
        self._agent.listen(end, self._silent)
        if self.leader is not None:
            self.leader.joined(rank, end)
        else:
            self._campaign.add(rank, membership or self.membership, last_sent)
            self._check_won()

    def _answered(self, rank: int, sent: float | None, version: int) -> None:
        if self.leader is not None:
            self.leader.answered(rank, sent, version)
        elif sent is not None and rank in self.ends:
            self.last_sent[rank] = sent

    def on_closed(self, end: ConnectionEnd) -> None:
        self._lost(end, silent=False)

    def _silent(self, end: ConnectionEnd) -> None:
        self._lost(end, silent=True)
        end.close()

    def _lost(self, end: ConnectionEnd, silent: bool) -> None:
        if self.ends.get(end.rank) is not end or self.closed:
            return
        del self.ends[end.rank]
        self._campaign.remove(end.rank)
        if silent:
            self._agent.env.checker.declared_silent(self._agent, end.rank, self.term)
        if self.leader is not None:
            self.leader.lost(end.rank, silent)

    # -- winning ------------------------------------------------------------------------------------------------

    def _check_won(self) -> None:
        if self.ours and self.leader is None and not self.closed and self._campaign.won:
            self._agent.log(f"wins term {self.term} with {sorted(self.ends)}")
            self.term_start = self._campaign.term_start("the leader was lost")
            self.membership = self._campaign.new_membership()
            self._agent.start_leading(self)

    def _give_up(self) -> None:
        if self.leader is None and not self.closed:
            self.retire()

    def retire(self) -> None:
        """Release the members: they need no fence against this candidate."""
        self.closed = True
        for end in self.ends.values():
            end.send("retire")
            end.close()

    def close_all(self) -> None:
        """Close every connection without a message."""
        self.closed = True
        for end in self.ends.values():
            end.close()
