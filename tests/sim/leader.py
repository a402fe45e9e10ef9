"""The leader's edge: it feeds the real protocol, carries its commands out, and acts only while its lease lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.election.roster import Roster
from muster.lifecycle import events as m
from muster.lifecycle.services import ServiceState
from muster.lifecycle.states import ENDED, NodeState, RunState
from tests.sim.candidate import Seat
from tests.sim.host import DRIVER, Running
from tests.sim.network import End

if TYPE_CHECKING:
    from tests.sim.follower import Heir

TICK_S = 1.0
ENTITLE_S = 30.0  # a leader that has no majority for its first driver in this time will not get one


class Lead:
    """One term of one agent."""

    def __init__(self, agent: Heir, candidate: Seat) -> None:
        self._agent, self._candidate, self.term = agent, candidate, candidate.term
        around = agent.around
        self._watch, self._files = around.watch, around.files
        self.protocol = around.watch.protocol(around.plan, agent.now, candidate.term_start)
        self.quorum = around.watch.quorum(candidate.membership) if around.plan.succession else None
        self.over = False
        self._told = False  # of a roster of this leader's own
        self._roster = Roster(self.protocol)
        self._entitled = self.quorum is None
        self._driver: Running | None = None
        self._wanted: int | None = None  # the cycle whose driver is to start
        self._since = 0.0
        self._ended: set[int] = set()  # tasks whose end the launcher has told

    def start(self) -> None:
        agent, term = self._agent, self.term
        agent.host.clear()
        self._watch.leads(agent.rank, term, self.protocol)
        self._agent.ask(lambda: self._files.publish(term, self._publishes), lambda _: None)
        if not term:
            self._launcher_says(list(range(agent.rank)))  # who stands in for others knows that they never came
        for rank, end in list(self._candidate.ends.items()):
            self.joined(rank, end)
        self._tick()

    def _publishes(self) -> bool:
        return self._agent.alive and not self._agent.stopped and not self.over

    # -- events in ----------------------------------------------------------------------------------------------

    def joined(self, rank: int, end: End) -> None:
        if self.quorum is not None:
            known = self._candidate.known[rank]
            self._tell(self.quorum.answered(rank, self._candidate.spoken[rank], known.version if known else -1))
            self._candidate.tell(self.quorum.membership, rank)
        end.send("welcome", self.protocol.cycle)
        self._feed(m.Arrived(rank, f"n{rank}"))

    def answered(self, rank: int, sent: float | None, version: int) -> None:
        if self.quorum is not None and not self.over and not self._gives_way():
            self._tell(self.quorum.answered(rank, sent, version))
            self._renew()

    def lost(self, rank: int, silent: bool) -> None:
        self._watch.note("loss")
        self._feed(m.NodeLost(rank, "fell silent" if silent else "its connection ended"))

    def take(self, rank: int, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "ready":
            if rank == self.protocol.leader:
                self._feed(m.HeadUp(message[1]))
            self._feed(m.NodeReady(rank, message[1]))
        elif kind == "service":
            self._feed(m.ServiceReport(message[1], rank, ServiceState.READY, cycle=message[2]))
        elif kind == "gone":
            self._feed(m.NodeGone(rank, message[1]))
        elif kind == "failed":
            self._feed(m.NodeFailed(rank, message[1], message[2], message[3]))

    def stop(self) -> None:
        self._feed(m.StopRequested("stopped by alice", 15, 5.0))

    def _feed(self, event: m.Event) -> None:
        if self.over or self._gives_way():
            return
        for command in self.protocol.handle(event, self._agent.now):
            self._perform(command)
        self._watch.look(self.term, self.protocol)
        self._look()

    def _tick(self) -> None:
        if self.over:
            return
        self._feed(m.Tick())
        if self._wanted is not None and not self._entitled and self._agent.now > self._since + ENTITLE_S:
            self._give_way()
        if not self.over:
            self._agent.ask(lambda: self._files.seen_ends(self._agent.rank), self._launcher_says)
            self._agent.after(TICK_S, self._tick)

    def _launcher_says(self, ends: list[int]) -> None:
        for rank in [rank for rank in ends if rank not in self._ended]:
            self._ended.add(rank)
            if self.quorum is not None:
                self._tell(self.quorum.died(rank))
                self._renew()
            if self.protocol.nodes[rank].state is NodeState.EXPECTED:
                self._feed(m.NodeFailed(rank, "start", "its task ended", self.protocol.cycle))

    # -- the right to act ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        """After every event: who is to count from now on."""
        quorum, protocol = self.quorum, self.protocol
        if quorum is None or protocol.state in ENDED or protocol.outcome is not None or quorum.membership.before:
            return  # one change at a time
        if (protocol.state is RunState.GATHERING and not self._told) or not self._roster.changed():
            return  # who counted before does so until it is known who is there
        proposed = quorum.propose(self._roster.there, self._roster.excluded, protocol.cycle)
        self._tell(proposed or not self._told)
        self._told = True
        self._renew()

    def _tell(self, changed: bool) -> None:
        if changed and self.quorum is not None:
            self._watch.note("charter")
            self._agent.say(f"tells {self.quorum.membership}")
            self._candidate.tell(self.quorum.membership)
            self._look()

    def _renew(self) -> None:
        """From when a roster of this leader's own is in force; before that it runs nothing that must not run twice."""
        assert self.quorum is not None
        if self._entitled or (self._told and self.quorum.take(self._agent.now)):
            self._entitled = True
            self._agent.host.renew(self.quorum.lease())
            self._maybe_drive()

    def _gives_way(self) -> bool:
        if self._agent.host.expired:
            self._give_way()
        return self.over

    def _give_way(self) -> None:
        """Others may go on without us."""
        self._agent.say(f"leads term {self.term} no more")
        self.over = True
        self._watch.gave_way(self._agent.rank, self.term)
        self._candidate.close_all()
        self._agent.host.end_all()
        self._agent.give_way()

    # -- commands out -------------------------------------------------------------------------------------------

    def _perform(self, command: m.Command) -> None:
        if isinstance(command, m.StartHead):
            self._send(self.protocol.leader, "start", 0)
        elif isinstance(command, m.StartWorker):
            self._send(command.rank, "start", self.protocol.nodes[command.rank].logical)
        elif isinstance(command, m.StartServices):
            self._send(command.rank, "services", command.services)
        elif isinstance(command, m.StartDriver):
            self._watch.gate(self.term, self.protocol)
            self._wanted, self._since = self.protocol.cycle, self._agent.now
            self._maybe_drive()
        elif isinstance(command, m.EndDriver):
            self._end_driver(command.grace)
        elif isinstance(command, m.StopNode):
            self._send(command.rank, "stop", self.protocol.cycle)
        elif isinstance(command, m.Rejoin):
            self._send(command.rank, "welcome", self.protocol.cycle)
        elif isinstance(command, m.Yield):
            self._yield()
        elif isinstance(command, m.Conclude):
            self._conclude()

    def _yield(self) -> None:
        """To whoever is next: this node is excluded, and there is no driver that they would have to wait for."""
        assert self.quorum is not None
        self._watch.note("yield")
        self._candidate.tell(self.quorum.membership.without_leader())
        self._candidate.retire()
        self._give_way()

    def _send(self, rank: int, *message: Any) -> None:
        end = self._candidate.ends.get(rank)
        if end is not None:
            end.send(*message)

    def _maybe_drive(self) -> None:
        """Nobody can come after us without knowing of this cycle."""
        if self._wanted is None or not self._entitled:
            return
        known = self.quorum is None or (self.quorum.settled and self.quorum.membership.cycle == self._wanted)
        if known:
            cycle, self._wanted = self._wanted, None
            self._agent.after(self._agent.around.world.between(0.0, 0.3), self._drive, cycle)

    def _drive(self, cycle: int) -> None:
        if self.over or cycle != self.protocol.cycle or not self.protocol.driver_running or self._gives_way():
            return
        self._driver = driver = self._agent.host.start(DRIVER, self.term, cycle, 0)
        if driver is not None:
            seconds, code = self._agent.around.driver()
            driver.on_end = lambda how: self._agent.deliver(self._driver_ended, driver, how)
            self._agent.host.after(seconds, self._agent.host.end, driver, f"exited with {code}")

    def _driver_ended(self, driver: Running, how: str) -> None:
        code = int(how[-1]) if how.startswith("exited") else 143
        self._driver = None
        self._feed(m.DriverEnded(code, how, driver.cycle))

    def _end_driver(self, grace: float) -> None:
        cycle, host = self.protocol.cycle, self._agent.host
        if self._driver is not None:
            host.after(self._agent.around.world.between(0.0, grace), host.end, self._driver, "was ended by SIGTERM")
        else:
            self._wanted = None
            self._agent.after(0.0, self._feed, m.DriverEnded(143, "was ended by SIGTERM", cycle))

    def _conclude(self) -> None:
        outcome = self.protocol.outcome
        assert outcome is not None
        self.over = True
        self._agent.say(f"concludes: {outcome.end_reason}")
        self._watch.concluded(self.term, outcome)
        self._agent.host.end_all()
        self._agent.ask(lambda: self._files.conclude(self.term, outcome.end_reason), self._dismiss)

    def _dismiss(self, reason: str) -> None:
        """Everybody may go, this agent with them. The reason is the one that was recorded first."""
        self._watch.dismissed[self.term] = list(self._candidate.ends), reason
        self._candidate.closed = True
        for end in self._candidate.ends.values():
            end.send("bye", reason)
        self._agent.leave(reason)
