"""A simulated leader: feeds the real state machine, executes its commands, and acts only while its lease lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.election.roster import Roster
from muster.lifecycle import events as m
from muster.lifecycle.services import ServiceState
from muster.lifecycle.states import ENDED, NodeState, RunState
from tests.sim.candidate import Candidate
from tests.sim.host import DRIVER, SimProcess
from tests.sim.network import ConnectionEnd

if TYPE_CHECKING:
    from tests.sim.follower import Follower

TICK_INTERVAL_S = 1.0
FIRST_LEASE_TIMEOUT_S = 30.0  # a leader that has no majority for its first driver in this time will not get one


class Leader:
    """One term of one agent."""

    def __init__(self, agent: Follower, candidate: Candidate) -> None:
        self._agent, self._candidate, self.term = agent, candidate, candidate.term
        env = agent.env
        self._checker, self._files = env.checker, env.files
        self.protocol = env.checker.protocol(env.plan, agent.now, candidate.term_start)
        self.quorum = env.checker.quorum(candidate.membership) if env.plan.failover else None
        self.over = False
        self._membership_sent = False  # with a roster proposed by this leader
        self._roster = Roster(self.protocol)
        self._lease_acquired = self.quorum is None
        self._driver: SimProcess | None = None
        self._wanted: int | None = None  # the cycle whose driver is to start
        self._since = 0.0
        self._ended: set[int] = set()  # tasks whose end the launcher reported

    def start(self) -> None:
        agent, term = self._agent, self.term
        agent.host.clear()
        self._checker.leads(agent.rank, term, self.protocol)
        self._agent.access_files(lambda: self._files.publish(term, self._publishes), lambda _: None)
        if not term:
            self._on_launcher_report(list(range(agent.rank)))  # earlier candidates never started
        for rank, end in list(self._candidate.ends.items()):
            self.joined(rank, end)
        self._tick()

    def _publishes(self) -> bool:
        return self._agent.alive and not self._agent.stopped and not self.over

    # -- events in ----------------------------------------------------------------------------------------------

    def joined(self, rank: int, end: ConnectionEnd) -> None:
        if self.quorum is not None:
            known = self._candidate.known[rank]
            self._send_membership(
                self.quorum.answered(rank, self._candidate.last_sent[rank], known.version if known else -1)
            )
            self._candidate.send_membership(self.quorum.membership, rank)
        end.send("welcome", self.protocol.cycle)
        self._feed(m.Arrived(rank, f"n{rank}"))

    def answered(self, rank: int, sent: float | None, version: int) -> None:
        if self.quorum is not None and not self.over and not self._lease_lost():
            self._send_membership(self.quorum.answered(rank, sent, version))
            self._renew()

    def lost(self, rank: int, silent: bool) -> None:
        self._checker.note("loss")
        self._feed(m.NodeLost(rank, "fell silent" if silent else "its connection ended"))

    def on_message(self, rank: int, message: tuple[Any, ...]) -> None:
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
        if self.over or self._lease_lost():
            return
        for command in self.protocol.handle(event, self._agent.now):
            self._perform(command)
        self._checker.check(self.term, self.protocol)
        self._propose_roster()

    def _tick(self) -> None:
        if self.over:
            return
        self._feed(m.Tick())
        if (
            self._wanted is not None
            and not self._lease_acquired
            and self._agent.now > self._since + FIRST_LEASE_TIMEOUT_S
        ):
            self._step_down()
        if not self.over:
            self._agent.access_files(lambda: self._files.seen_ends(self._agent.rank), self._on_launcher_report)
            self._agent.after(TICK_INTERVAL_S, self._tick)

    def _on_launcher_report(self, ends: list[int]) -> None:
        for rank in [rank for rank in ends if rank not in self._ended]:
            self._ended.add(rank)
            if self.quorum is not None:
                self._send_membership(self.quorum.died(rank))
                self._renew()
            if self.protocol.nodes[rank].state is NodeState.EXPECTED:
                self._feed(m.NodeFailed(rank, "start", "its task ended", self.protocol.cycle))

    # -- lease and roster ---------------------------------------------------------------------------------------

    def _propose_roster(self) -> None:
        """Propose the current roster, after every event."""
        quorum, protocol = self.quorum, self.protocol
        if quorum is None or protocol.state in ENDED or protocol.outcome is not None or quorum.membership.before:
            return  # one change at a time
        if (protocol.state is RunState.GATHERING and not self._membership_sent) or not self._roster.update():
            return  # the old roster counts until the new members are known
        proposed = quorum.propose(self._roster.members, self._roster.excluded, protocol.cycle)
        self._send_membership(proposed or not self._membership_sent)
        self._membership_sent = True
        self._renew()

    def _send_membership(self, changed: bool) -> None:
        if changed and self.quorum is not None:
            self._checker.note("membership")
            self._agent.log(f"sends {self.quorum.membership}")
            self._candidate.send_membership(self.quorum.membership)
            self._propose_roster()

    def _renew(self) -> None:
        """Renew the lease once a roster of this leader is in force; before that no driver runs."""
        assert self.quorum is not None
        if self._lease_acquired or (self._membership_sent and self.quorum.acquire(self._agent.now)):
            self._lease_acquired = True
            self._agent.host.renew(self.quorum.expires_at())
            self._maybe_start_driver()

    def _lease_lost(self) -> bool:
        if self._agent.host.expired:
            self._step_down()
        return self.over

    def _step_down(self) -> None:
        """Stop leading: other nodes may continue the run."""
        self._agent.log(f"leads term {self.term} no more")
        self.over = True
        self._checker.stepped_down(self._agent.rank, self.term)
        self._candidate.close_all()
        self._agent.host.end_all()
        self._agent.on_lease_lost()

    # -- commands out -------------------------------------------------------------------------------------------

    def _perform(self, command: m.Command) -> None:
        if isinstance(command, m.StartHead):
            self._send(self.protocol.leader, "start", 0)
        elif isinstance(command, m.StartWorker):
            self._send(command.rank, "start", self.protocol.nodes[command.rank].logical)
        elif isinstance(command, m.StartServices):
            self._send(command.rank, "services", command.services)
        elif isinstance(command, m.StartDriver):
            self._checker.gate(self.term, self.protocol)
            self._wanted, self._since = self.protocol.cycle, self._agent.now
            self._maybe_start_driver()
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
        """Release the members and exclude this node. There is no driver to fence."""
        assert self.quorum is not None
        self._checker.note("yield")
        self._candidate.send_membership(self.quorum.membership.without_leader())
        self._candidate.retire()
        self._step_down()

    def _send(self, rank: int, *message: Any) -> None:
        end = self._candidate.ends.get(rank)
        if end is not None:
            end.send(*message)

    def _maybe_start_driver(self) -> None:
        """Start the driver once every possible next leader knows of this cycle."""
        if self._wanted is None or not self._lease_acquired:
            return
        known = self.quorum is None or (self.quorum.settled and self.quorum.membership.cycle == self._wanted)
        if known:
            cycle, self._wanted = self._wanted, None
            self._agent.after(self._agent.env.world.between(0.0, 0.3), self._start_driver, cycle)

    def _start_driver(self, cycle: int) -> None:
        if self.over or cycle != self.protocol.cycle or not self.protocol.driver_running or self._lease_lost():
            return
        self._driver = driver = self._agent.host.start(DRIVER, self.term, cycle, 0)
        if driver is not None:
            seconds, code = self._agent.env.driver()
            driver.on_end = lambda how: self._agent.deliver(self._driver_ended, driver, how)
            self._agent.host.after(seconds, self._agent.host.end, driver, f"exited with {code}")

    def _driver_ended(self, driver: SimProcess, how: str) -> None:
        code = int(how[-1]) if how.startswith("exited") else 143
        self._driver = None
        self._feed(m.DriverEnded(code, how, driver.cycle))

    def _end_driver(self, grace: float) -> None:
        cycle, host = self.protocol.cycle, self._agent.host
        if self._driver is not None:
            host.after(self._agent.env.world.between(0.0, grace), host.end, self._driver, "was ended by SIGTERM")
        else:
            self._wanted = None
            self._agent.after(0.0, self._feed, m.DriverEnded(143, "was ended by SIGTERM", cycle))

    def _conclude(self) -> None:
        outcome = self.protocol.outcome
        assert outcome is not None
        self.over = True
        self._agent.log(f"concludes: {outcome.end_reason}")
        self._checker.concluded(self.term, outcome)
        self._agent.host.end_all()
        self._agent.access_files(lambda: self._files.conclude(self.term, outcome.end_reason), self._release_members)

    def _release_members(self, reason: str) -> None:
        """Release all members with the reason that was recorded first, and leave."""
        self._checker.released[self.term] = list(self._candidate.ends), reason
        self._candidate.closed = True
        for end in self._candidate.ends.values():
            end.send("bye", reason)
        self._agent.leave(reason)
