"""A simulated leader: feeds the real state machine, executes its commands, and acts only while its lease lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from muster.election.leader_lease import (
    AuthorizeCycle,
    AuthorizeOutcome,
    Broadcast,
    LeaseEffect,
    RenewLease,
    RequestAnswers,
    SendMembership,
)
from muster.election.timing import FENCE_S
from muster.lifecycle import events as m
from muster.lifecycle.config import FINISH_TIMEOUT_S
from muster.lifecycle.roles import Role
from muster.lifecycle.states import NodeState
from muster.lifecycle.transition import NO_TRANSITION, Transition
from muster.process.running_time import RunningTime
from tests.sim.candidate import Candidate
from tests.sim.control import control_event, draw_request
from tests.sim.files import Recorded
from tests.sim.host import DRIVER, NEVER, SimProcess
from tests.sim.invariants import InvariantViolated
from tests.sim.network import ConnectionEnd

if TYPE_CHECKING:
    from tests.sim.follower import Follower

TICK_INTERVAL_S = 0.5
CLOCKS_DIFFER_S = 0.3  # of two hosts, about the rest of a fence
STOP_GRACE_S = 5.0  # of a stop request
PUBLISH_INTERVAL_S = 10.0  # between two publications of a status that does not change


class Leader:
    """One term of one agent."""

    def __init__(self, agent: Follower, candidate: Candidate) -> None:
        self._agent, self._candidate, self.term = agent, candidate, candidate.term
        env = agent.env
        self._checker, self._files = env.checker, env.files
        term_start = env.checker.control.inherited(candidate.term_start)
        self.protocol = env.checker.protocol(env.plan, agent.running_now, term_start)
        self.lease = env.checker.lease(self.protocol, candidate.membership, candidate.in_use)
        self.over = False
        self._running_time = RunningTime()
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []  # while the lease is lapsed
        self._driver: SimProcess | None = None
        self._ended: set[int] = set()  # tasks whose end the launcher reported
        self._electors = [env.agents[node_index] for node_index in candidate.ends]
        self._published = -NEVER
        self._scenario = env.scenario
        self._cancelled = -1  # the cycle whose driver was ended before its start
        self._sent: dict[int, float] = {}  # of each member: when the last heartbeat that it answered was sent
        self._fenced_at = -NEVER  # when the gang processes of all lost nodes have ended
        self._gang: set[int] = set()  # nodes whose part of the gang has not ended
        self._gang_end: tuple[SimProcess, str] | None = None  # the driver whose gang is being ended, and how it ended
        self._record = env.checker.outcomes.begin(self.term, self.protocol)

    def start(self) -> None:
        agent, term = self._agent, self.term
        agent.host.clear()
        self._checker.leads(agent.node_index, term, self.protocol)
        self._checker.outcomes.leads(term, agent)
        self._apply(self.protocol.start(agent.running_now))
        if not term:
            self._on_launcher_report(list(range(agent.node_index)))  # earlier candidates never started
        for node_index, end in list(self._candidate.ends.items()):
            self.joined(node_index, end, self._candidate.candidacy.sent[node_index])
        self._tick()

    def _publish(self) -> None:
        """Publish the status. Its stamp is the time of the wall clock, which readers only compare for equality."""
        if self._agent.now >= self._published + PUBLISH_INTERVAL_S:
            self._published = self._agent.now
            stamp = self._agent.host.wall
            self._agent.access_files(lambda: self._files.publish(self.term, stamp), lambda _: None)

    # -- events in ----------------------------------------------------------------------------------------------

    def joined(self, node_index: int, end: ConnectionEnd, sent: float) -> None:
        if self._waits(self.joined, node_index, end, sent):
            return
        known = self._candidate.known[node_index]
        self._execute(self.lease.joined(node_index, sent, known.version if known else -1, self._agent.now))
        self._sent[node_index] = sent
        end.send("welcome", self.protocol.cycle)
        self._feed(m.Arrived(node_index, f"n{node_index}", self._scenario.location(node_index)))

    def answered(self, node_index: int, sent: float | None, version: int) -> None:
        if node_index not in self._sent:  # its arrival waits
            return
        self._sent[node_index] = self._sent[node_index] if sent is None else sent
        if not self.over and not self._lease_lost():
            self._execute(self.lease.answered(node_index, sent, version, self._agent.now))
            self._catch_up()

    def lost(self, node_index: int, silent: bool) -> None:
        if self._waits(self.lost, node_index, silent):
            return
        self._checker.note("loss")
        self._fenced_at = max(self._fenced_at, self._sent.get(node_index, -NEVER) + FENCE_S)
        self._feed(m.NodeLost(node_index, "fell silent" if silent else "its connection ended"))
        self._gang_ended(node_index)

    def on_message(self, node_index: int, message: tuple[Any, ...]) -> None:
        if self._waits(self.on_message, node_index, message):
            return
        kind = message[0]
        if kind == "ready":
            if node_index == self.protocol.leader:
                self._feed(m.HeadUp(message[1]))
            self._feed(m.NodeReady(node_index, message[1]))
        elif kind == "service":
            self._feed(m.ServiceReport(message[1], node_index, message[3], cycle=message[2]))
        elif kind == "health":
            node = self.protocol.nodes[node_index]
            if node.role is Role.SPARE and node.state is NodeState.ARRIVED:
                self._feed(m.Health(node_index, message[1], "it is too hot"))
        elif kind == "rank failed" and self._driver is not None and self._driver.cycle == message[1]:
            self._agent.host.end(self._driver, "exited with 1")
        elif kind == "processes ended" and self._gang_end is not None and self._gang_end[0].cycle == message[1]:
            self._gang_ended(node_index)
        elif kind == "control":
            self._feed(control_event(message[1], node_index, *message[2:]))
        elif kind == "gone":
            self._feed(m.NodeGone(node_index, message[1]))
        elif kind == "failed":
            self._feed(m.NodeFailed(node_index, message[1], message[2], message[3]))

    def stop(self) -> None:
        if self._waits(self.stop):
            return
        if self.protocol.outcome is None and not self.over and not self._lease_lost():
            self._feed(m.StopRequested("stopped by alice", 15, STOP_GRACE_S))
            self._await_end(self._agent.stops)

    def stalled(self, cycle: int) -> None:
        """Handle that a watch of the driver found no progress."""
        self._feed(m.DriverStalled("no progress", cycle))

    def _await_end(self, stops: int) -> None:
        """Check that the run ends in time after a stop request; the time starts again if this agent was stopped."""
        self._agent.after(STOP_GRACE_S + FINISH_TIMEOUT_S + 2 * TICK_INTERVAL_S, self._check_ended, stops)

    def _check_ended(self, stops: int) -> None:
        if stops != self._agent.stops:
            self._await_end(self._agent.stops)
        elif not self.over:
            raise InvariantViolated(f"the run of term {self.term} goes on after a stop request")

    def _waits(self, act: Callable[..., None], *args: Any) -> bool:
        """Let an event wait while the lease is lapsed; return whether it does."""
        if self.over or self._lease_lost() or not self.lease.lapsed:
            return False
        self._waiting.append((act, args))
        return True

    def _catch_up(self) -> None:
        """Handle what has waited, once this leader acts again."""
        while self._waiting and not self.lease.lapsed:
            act, args = self._waiting.pop(0)
            act(*args)

    def _feed(self, event: m.Event) -> None:
        if self.over or self._lease_lost() or (self.lease.lapsed and isinstance(event, m.Tick)):
            return
        if self._waits(self._feed, event):
            return
        protocol = self.protocol
        lost = protocol.nodes[event.node_index] if isinstance(event, (m.NodeFailed, m.NodeLost)) else None
        before = protocol.state
        self._record.note(event, self._agent.running_now)
        stale = self._checker.is_stale(event, protocol)
        transition = protocol.handle(event, self._agent.running_now)
        if stale and transition != NO_TRANSITION:
            raise InvariantViolated(f"{event} changes cycle {protocol.cycle}")
        self._apply(transition)
        self._checker.check_excluded(event, before, lost, protocol)
        self._checker.control.check_handled(event, before, protocol)
        self._execute(self.lease.run_changed(self._agent.now))

    def _apply(self, transition: Transition) -> None:
        for command in transition.commands:
            self._perform(command)
        self._checker.check(self.term, self.protocol, transition.changes)

    def _tick(self) -> None:
        if self.over:
            return
        self._feed(m.Tick())
        if not self.over:
            self._execute(self.lease.tick(self._agent.now))
        if not self.over:
            if not self.lease.lapsed:
                self._publish()
            self._agent.access_files(lambda: self._files.seen_ends(self._agent.node_index), self._on_launcher_report)
            self._agent.after(TICK_INTERVAL_S, self._tick)

    def _on_launcher_report(self, ends: list[int]) -> None:
        if self._waits(self._on_launcher_report, ends):
            return
        for node_index in [node_index for node_index in ends if node_index not in self._ended]:
            self._ended.add(node_index)
            self._execute(self.lease.died(node_index, self._agent.now))
            if self.protocol.nodes[node_index].state is NodeState.EXPECTED:
                self._feed(m.NodeFailed(node_index, "start", "its task ended", self.protocol.cycle))

    # -- the lease ----------------------------------------------------------------------------------------------

    def _execute(self, effects: Iterable[LeaseEffect]) -> None:
        for effect in effects:
            if self.over:
                return
            if isinstance(effect, Broadcast):
                self._checker.note("membership")
                self._agent.log(f"sends {effect.membership}")
                self._candidate.send_membership(effect.membership)
            elif isinstance(effect, SendMembership):
                self._candidate.send_membership(effect.membership, effect.node_index)
            elif isinstance(effect, RenewLease):
                renew = self._agent.host.renew_again if effect.again else self._agent.host.renew
                renew(NEVER if effect.until is None else effect.until)
            elif isinstance(effect, RequestAnswers):
                self._candidate.beat_once()
            elif isinstance(effect, AuthorizeCycle):
                self._checker.authorized(self.lease.membership)
                self._agent.after(self._agent.env.world.between(0.0, 0.3), self._start_driver, effect.cycle)
            elif isinstance(effect, AuthorizeOutcome):
                self._conclude()
            else:
                self._step_down()

    def _lease_lost(self) -> bool:
        host, now = self._agent.host, self._agent.now
        if stopped := self._running_time.observe(now):
            self._execute(self.lease.resumed(stopped, now, host.expired))
        if host.fenced:
            self._execute(self.lease.fenced())
        elif host.expired and not self.lease.lapsed:
            self._execute(self.lease.expired(now))
        return self.over

    def _step_down(self) -> None:
        """Stop leading: other nodes may continue the run."""
        self._agent.log(f"leads term {self.term} no more")
        self.over = True
        self._checker.outcomes.steps_down(self.term)
        self._checker.stepped_down(self._agent.node_index, self.term)
        self._candidate.close_all()
        self._agent.host.end_all()
        self._agent.on_lease_lost()

    # -- commands out -------------------------------------------------------------------------------------------

    def _perform(self, command: m.Command) -> None:
        if isinstance(command, m.StartHead):
            self._send(command.node_index, "start", 0)
        elif isinstance(command, m.StartWorker):
            self._send(command.node_index, "start", command.rank)
        elif isinstance(command, m.StartServices):
            self._send(command.node_index, "services", command.services)
        elif isinstance(command, m.StartDriver):
            self._checker.gate(self.term, self.protocol)
            self._execute(self.lease.cycle_wanted(command.cycle, self._agent.now))
        elif isinstance(command, m.EndDriver):
            self._end_driver(command)
        elif isinstance(command, m.StopNode):
            self._send(command.node_index, "stop", command.cycle)
        elif isinstance(command, m.Rejoin):
            self._send(command.node_index, "welcome", command.cycle)
        elif isinstance(command, m.Yield):
            self._yield(command.successor)
        elif isinstance(command, m.Conclude):
            self._record.check_conclusion(command.outcome, self._checker.hosts)
            self._execute(self.lease.outcome_wanted(self._agent.now))

    def _yield(self, successor: int) -> None:
        """Release the members and exclude this node. There is no driver to fence."""
        self._checker.note("yield")
        self._checker.handed_over[self._agent.node_index] = self.term
        self._candidate.send_membership(self.lease.last_membership(successor))
        self._candidate.retire()
        self._step_down()

    def _send(self, node_index: int, *message: Any) -> None:
        end = self._candidate.ends.get(node_index)
        if end is not None:
            end.send(*message)

    def _start_driver(self, cycle: int) -> None:
        protocol = self.protocol
        if self.over or cycle == self._cancelled or self._lease_lost() or self._waits(self._start_driver, cycle):
            return
        if cycle != protocol.cycle or not protocol.driver_running:
            return
        if self._scenario.gang and self._agent.now < self._fenced_at:
            self._agent.after(self._fenced_at - self._agent.now, self._start_driver, cycle)
            return
        if any(elector.fence_left(self.term) > CLOCKS_DIFFER_S for elector in self._electors):
            self._checker.starts_early(self.term)
        self._driver = driver = self._agent.host.start(DRIVER, self.term, cycle, 0)
        if driver is not None:
            seconds, code = self._agent.env.driver()
            driver.on_end = lambda how: self._agent.deliver(self._driver_ended, driver, how)
            self._agent.host.exit_after(seconds, driver, f"exited with {code}")
            self._accompany(driver, seconds)

    def _accompany(self, driver: SimProcess, seconds: float) -> None:
        """Start the gang of this driver, and schedule its progress and its stall."""
        world, scenario, agent = self._agent.env.world, self._scenario, self._agent
        if scenario.gang:
            active = [node for node in self.protocol.nodes if node.role is Role.ACTIVE]
            self._gang, self._gang_end = {node.node_index for node in active}, None
            for node in active:
                self._send(node.node_index, "processes", driver.cycle, node.rank)
            self._gang.intersection_update(self._candidate.ends)
        if scenario.progress and world.chance.random() < 0.6:
            agent.after(world.between(0.0, seconds), self._make_progress, driver)
        if scenario.stalls and world.chance.random() < 0.3:
            agent.after(world.between(0.0, seconds), self.stalled, driver.cycle)
        if scenario.requests and world.request_chance.random() < 0.9:
            node = world.request_chance.choice([node for node in self.protocol.nodes if node.role is Role.ACTIVE])
            request = agent.env.agents[node.node_index].request
            agent.after(world.request_chance.uniform(0.0, seconds), draw_request, world.request_chance, request)

    def _make_progress(self, driver: SimProcess) -> None:
        if not driver.ended and not self.over:
            self._checker.progressed.add((self.term, driver.cycle))
            self._feed(m.Progress(driver.cycle))

    def _gang_ended(self, node_index: int) -> None:
        """Handle the end of a node's part of the gang. The driver has ended when all parts have."""
        self._gang.discard(node_index)
        if not self._gang and self._gang_end is not None:
            ended, self._gang_end = self._gang_end, None
            self._agent.after(0.0, self._guests_ended, *ended)

    def _driver_ended(self, driver: SimProcess, how: str) -> None:
        """Handle the end of the driver: first its gang ends, then guests' sessions do."""
        if self._waits(self._driver_ended, driver, how):
            return
        if self._gang:
            self._gang_end = driver, how
            for node_index in self._gang:
                self._send(node_index, "end processes", driver.cycle)
        else:
            guests_s = self._agent.env.world.between(0.0, self._scenario.guests_s) if self._scenario.guests_s else 0.0
            self._agent.after(guests_s, self._guests_ended, driver, how)

    def _guests_ended(self, driver: SimProcess, how: str) -> None:
        code = int(how[-1]) if how.startswith("exited") else 143
        self._driver = None
        if code == 0:
            self._checker.outcomes.zero_exits.add((self.term, driver.cycle))
        self._feed(m.DriverEnded(code, how, driver.cycle))

    def _end_driver(self, command: m.EndDriver) -> None:
        host = self._agent.host
        if self._driver is not None:
            host.after(
                self._agent.env.world.between(0.0, command.grace), host.end, self._driver, "was ended by SIGTERM"
            )
        elif self._gang_end is None and command.cycle != self._cancelled:
            self._cancelled = command.cycle
            self._agent.after(0.0, self._feed, m.DriverEnded(143, "was ended by SIGTERM", command.cycle))

    def _conclude(self) -> None:
        outcome = self.protocol.outcome
        assert outcome is not None
        self.over = True
        self._agent.log(f"concludes: {outcome.end_reason}")
        self._checker.outcomes.steps_down(self.term)
        self._checker.concluded(self.term, outcome)
        self._agent.host.end_all()
        recorded = Recorded(outcome.exit_code, outcome.end_reason)
        self._agent.access_files(lambda: self._files.conclude(recorded), self._release_members)

    def _release_members(self, outcome: Recorded) -> None:
        """Release all members with the outcome that was recorded first, and leave."""
        self._checker.released[self.term] = list(self._candidate.ends), outcome.reason
        self._candidate.release("bye", outcome)
        self._agent.leave(outcome.reason, outcome.code)
