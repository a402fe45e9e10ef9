"""A candidate's term: it leads when a majority of the members has joined; then it holds the leader's connections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from muster.election.candidate import Candidacy, CandidacyEffect, Win
from muster.election.membership import Membership
from muster.lifecycle.config import TermStart
from tests.sim.network import ConnectionEnd
from tests.sim.scenarios import OTHER_ATTEMPT

if TYPE_CHECKING:
    from tests.sim.follower import Follower
    from tests.sim.leader import Leader

HEARTBEAT_INTERVAL_S = 2.5
CANDIDACY_POLL_S = 0.5


class Candidate:
    """A claimed term and the connections of the members that joined."""

    def __init__(self, agent: Follower, term: int, membership: Membership, in_use: frozenset[int] | None) -> None:
        self._agent, self.term = agent, term
        self.closed = False
        self.leader: Leader | None = None
        self.ends: dict[int, ConnectionEnd] = {}
        self.known: dict[int, Membership | None] = {}  # the membership that each knew when it joined
        self._echo: dict[int, float] = {}  # the time in the last message of each, by its clock
        self._came: set[int] = set()
        self._farewell: tuple[Any, ...] = ()  # the message with which the members were released
        self.term_start: TermStart  # set when it wins, as is the first membership of the term
        self.membership = membership
        self.in_use: frozenset[int] | None = None
        self.candidacy = Candidacy(term, agent.node_index, membership, "the leader was lost", in_use)
        self._nonces: dict[int, float] = {}
        self._beat()

    def open(self) -> None:
        """Begin after the claim succeeded."""
        self._agent.env.checker.note("claim")
        self._execute(self.candidacy.claimed(self._agent.running_now))
        self._poll()

    def accept(self, end: ConnectionEnd) -> None:
        """Send a nonce, so that the greeting is known to be sent later."""
        end.receiver = self
        self._nonces[id(end)] = self._agent.now
        end.send("nonce")

    def _beat(self) -> None:
        if not self.closed:
            self.beat_once()
            self._agent.after(HEARTBEAT_INTERVAL_S, self._beat)

    def beat_once(self) -> None:
        """Send one heartbeat to all members."""
        now = self._agent.now
        for node_index, end in self.ends.items():
            end.send("beat", now, self._echo[node_index])

    def send_membership(self, membership: Membership, *node_indexes: int) -> None:
        """Send the membership to these members, or to all."""
        for node_index in node_indexes or self.ends:
            self.ends[node_index].send("membership", membership)

    # -- members ------------------------------------------------------------------------------------------------

    def on_message(self, end: ConnectionEnd, message: tuple[Any, ...]) -> None:
        end.wait = self._agent.running_now
        kind = message[0]
        if kind == "answer":
            _, sent, version, self._echo[end.node_index] = message
            self._answered(end.node_index, sent, version)
        elif kind == "greeting":
            self._greeted(end, *message[1:])
        elif self.leader is not None:
            self.leader.on_message(end.node_index, message)

    def _greeted(
        self, end: ConnectionEnd, node_index: int, membership: Membership | None, time: float, attempt: int = 0
    ) -> None:
        last_sent = self._nonces.pop(id(end))
        if attempt == OTHER_ATTEMPT:
            end.send("bye", None)
            end.close()
            return
        rejection = ("refuse",) if node_index in self._came else self._farewell
        if self.closed or rejection:
            end.send(*rejection)
            end.close()
            return
        self._came.add(node_index)
        end.node_index, self.ends[node_index], self._echo[node_index] = node_index, end, time
        self.known[node_index] = membership
        self._agent.listen(end, self._silent)
        if self.leader is not None:
            self.leader.joined(node_index, end, last_sent)
        else:
            self._execute(self.candidacy.joined(node_index, membership, last_sent))

    def _answered(self, node_index: int, sent: float | None, version: int) -> None:
        if self.leader is not None:
            self.leader.answered(node_index, sent, version)
        else:
            self.candidacy.answered(node_index, sent)

    def on_closed(self, end: ConnectionEnd) -> None:
        self._lost(end, silent=False)

    def _silent(self, end: ConnectionEnd) -> None:
        self._lost(end, silent=True)
        end.close()

    def _lost(self, end: ConnectionEnd, silent: bool) -> None:
        if self.ends.get(end.node_index) is not end or self.closed:
            return
        del self.ends[end.node_index]
        self.candidacy.lost(end.node_index)
        checker = self._agent.env.checker
        checker.lost(self._agent, end)
        if silent:
            checker.declared_silent(self._agent, end.node_index, self.term)
        if self.leader is not None:
            self.leader.lost(end.node_index, silent)

    # -- effects ------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        if self.leader is None and not self.closed:
            self._execute(self.candidacy.tick(self._agent.running_now))
            self._agent.after(CANDIDACY_POLL_S, self._poll)

    def _execute(self, effects: Iterable[CandidacyEffect]) -> None:
        for effect in effects:
            if not isinstance(effect, Win):
                self.retire()
            elif not self.closed:
                self._agent.log(f"wins term {self.term} with {sorted(self.ends)}")
                self.term_start, self.membership = effect.term_start, effect.membership
                self.in_use = effect.in_use
                self._agent.start_leading(self)

    def retire(self) -> None:
        """Release the members: they need no fence against this candidate."""
        self.release("retire")
        self.close_all()

    def release(self, *farewell: Any) -> None:
        """Send this message to all members, and to those that are about to join."""
        self.closed, self._farewell = True, farewell
        for end in self.ends.values():
            end.send(*farewell)

    def close_all(self) -> None:
        """Close every connection without a message."""
        self.closed = True
        for end in self.ends.values():
            end.close()
