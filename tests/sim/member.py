"""An agent's work for its node: it executes one leader's commands, answers heartbeats, reports, and cleans up."""

from __future__ import annotations

from typing import Any

from muster.election.handover import RosterHistory
from muster.election.membership import Membership
from muster.election.timing import LEASE_S
from muster.lifecycle.control import ControlKind
from muster.lifecycle.services import ServiceState
from tests.sim.agent import Agent, Environment
from tests.sim.files import Recorded
from tests.sim.host import DRIVER, GANG, RAY, SERVICE, Host, SimProcess
from tests.sim.network import ConnectionEnd

HANDSHAKE_TIMEOUT_S = 5.0
CHECK_INTERVAL_S, END_S = 4.0, 1.0  # between two health checks; to end the processes of a gang
START_S, CLEANUP_S = (0.2, 4.0), (0.05, 1.5)  # durations of starting and ending Ray


class Member(Agent):
    """A member under one leader; Follower adds the change of leaders."""

    def __init__(self, env: Environment, host: Host) -> None:
        super().__init__(env, host)
        self.end: ConnectionEnd | None = None  # the connection to the leader
        self.membership: Membership | None = None
        self.history = RosterHistory()
        self.term, self.leader_rank = -1, 0  # of the leader that it follows
        self.cycle = 0
        self.answered = 0.0  # time of the last message to the leader, by the clock of the event loop
        self._heard = 0.0  # time of the last message that the leader is known to have received
        self._commands: list[tuple[Any, ...]] = []  # that wait for the current one to finish
        self._busy = False
        self._greeted = False
        self._stopped_clean = False  # the leader has stopped this node, and no process is left

    # -- joining ------------------------------------------------------------------------------------------------

    def join(self, term: int, node_index: int) -> None:
        """Connect to a candidate or leader, with a timeout."""
        self.term, self.leader_rank, self._greeted = term, node_index, False
        self.end = end = self.env.network.connect(self, self, node_index, term)
        self.after(HANDSHAKE_TIMEOUT_S, self._handshake_timed_out, end)

    def _handshake_timed_out(self, end: ConnectionEnd) -> None:
        if end is self.end and not self._greeted:
            end.close()
            self.on_closed(end)

    def _greet(self, end: ConnectionEnd) -> None:
        """Send the greeting. From here on the leader may count this member, even if the connection fails."""
        self._greeted, self.answered, self._heard = True, self.running_now, self.now
        self._commands, self._busy, self._stopped_clean = [], False, False
        end.send("greeting", self.node_index, self.membership, self.now)
        self.listen(end, self._silent)
        if self.env.scenario.health:
            self._check_health(end, True)
        self.on_connected()

    @property
    def leads(self) -> bool:
        return self.leader_rank == self.node_index

    # -- messages of the leader -----------------------------------------------------------------------------------

    def on_message(self, end: ConnectionEnd, message: tuple[Any, ...]) -> None:
        """Answer heartbeats and memberships at once, even while a command runs."""
        if end is not self.end:
            return  # of a previous leader
        end.wait = self.running_now
        kind = message[0]
        if kind == "beat":
            self._answer(end, message[1])
            self._heard = message[2]
            self._renew(self._heard)
        elif kind == "membership":
            self.membership = message[1]
            self.history.received(message[1], self.running_now)
            self._answer(end, None)
            self._renew(self._heard)
        elif kind == "nonce":
            self._greet(end)
        elif self._busy:
            self._commands.append(message)
        else:
            self._handle(end, message)

    def _answer(self, end: ConnectionEnd, sent: float | None) -> None:
        """Answer with the time in the heartbeat; None only reports the known version."""
        self.answered = self.running_now
        end.send("answer", sent, self.membership.version if self.membership else -1, self.now)

    def _renew(self, echo: float) -> None:
        """Renew the lease from the send time of our last message that the leader received.

        So the processes here are gone before the leader declares this node silent.
        """
        if (self.membership is not None or self.env.plan.member_leases) and not self.leads:
            renew = self.host.renew_again if self.host.expired else self.host.renew
            renew(echo + LEASE_S)

    def _handle(self, end: ConnectionEnd, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "welcome":
            self.cycle, self._stopped_clean = message[1], False
            self._renew(self._heard)
            self.env.checker.welcomed(self.node_index, self.term, message[1])
        elif kind == "start":
            process = self.host.start(RAY, self.term, self.cycle, message[1])
            if process is not None:
                process.on_end = lambda how: self._failed(end, process)
                self.after(self.env.world.between(*START_S), self._started, end, process)
        elif kind == "services":
            for name in message[1]:
                service = self.host.start(SERVICE, self.term, self.cycle, 0)
                if service is not None:
                    self._watch_service(end, name, service)
                    self.after(self.env.world.between(*START_S), self._serves, end, name, service)
        elif kind == "processes":
            self._start_processes(end, *message[1:])
        elif kind == "end processes":
            self.after(self.env.world.between(0.0, END_S), self._end_gang, end, message[1])
        elif kind == "stop":
            self._busy = True
            self.after(self._end_processes(), self._stopped, end, message[1])
        elif kind == "retire":
            self.on_leader_lost(last_answer=None)
        elif kind == "bye":
            self.on_dismissed(message[1])
        elif kind == "refuse":
            self.on_refused()

    def _started(self, end: ConnectionEnd, process: SimProcess) -> None:
        if not process.ended and end is self.end:
            end.send("ready", process.cycle)

    def _serves(self, end: ConnectionEnd, name: str, process: SimProcess) -> None:
        if not process.ended and end is self.end:
            self.env.checker.serves(self.node_index, name, process)
            end.send("service", name, process.cycle, ServiceState.READY)

    def _watch_service(self, end: ConnectionEnd, name: str, process: SimProcess) -> None:
        """Report the failure of a service that was ended by a fault."""

        def report(how: str) -> None:
            if self.alive and end is self.end:
                end.send("service", name, process.cycle, ServiceState.FAILED)

        process.on_end = report

    def _start_processes(self, end: ConnectionEnd, cycle: int, rank: int) -> None:
        """Start this node's part of a gang."""
        process = self.host.start(GANG, self.term, cycle, rank)
        if process is None:
            end.send("rank failed", cycle)
        else:
            process.on_end = lambda how: end.send("rank failed", cycle)

    def _end_gang(self, end: ConnectionEnd, cycle: int) -> None:
        for process in [one for one in self.host.processes if one.kind == GANG]:
            process.on_end = lambda how: None
            self.host.end(process, "was ended by SIGTERM")
        end.send("processes ended", cycle)

    def _check_health(self, end: ConnectionEnd, ok: bool) -> None:
        """Report a health check, and make the next one."""
        if end is self.end and not end.closed:
            end.send("health", ok)
            changes = self.env.world.chance.random() < (0.1 if ok else 0.5)
            self.after(CHECK_INTERVAL_S, self._check_health, end, not ok if changes else ok)

    def _failed(self, end: ConnectionEnd, process: SimProcess) -> None:
        """Report that Ray ended unexpectedly; an intended end removes this callback first."""
        if self.alive and end is self.end:
            end.send("failed", "ray", "Ray exited with 1", process.cycle)

    def _end_processes(self) -> float:
        """Begin to end the processes; return the seconds that it takes."""
        for process in list(self.host.processes):
            if process.kind != DRIVER:
                process.on_end = lambda how: None
        return self.env.world.between(*CLEANUP_S)

    def _stopped(self, end: ConnectionEnd, cycle: int) -> None:
        for process in [process for process in self.host.processes if process.kind != DRIVER]:
            self.host.end(process, "was ended by SIGTERM")
        if end is not self.end:
            return
        self._busy, self._stopped_clean = False, True
        end.send("gone", cycle)
        while self._commands and not self._busy and end is self.end and self.alive:
            self._handle(end, self._commands.pop(0))

    def report(self, phase: str) -> None:
        """Report a failure of this node."""
        if self.end is not None and self.alive and not self.stopped:
            self.log(f"reports a failure ({phase})")
            self.end.send("failed", phase, f"{phase} failed", self.cycle)

    def request(self, kind: ControlKind, at_once: bool) -> None:
        """Send the control request of a program on this node."""
        if self.end is not None and self.alive and not self.stopped:
            self.log(f"requests: {kind.value}, at once: {at_once}")
            self.end.send("control", kind, at_once, self.cycle)

    # -- loss of the leader--------------------------------------------------------------------------------------

    def on_closed(self, end: ConnectionEnd) -> None:
        if end is self.end and self._greeted:
            self.on_leader_lost(self.answered)
        elif end is self.end:
            self.on_unreachable()

    def _silent(self, end: ConnectionEnd) -> None:
        """Handle a silent leader. It may live, so the connection stays open: closing it would send a signal."""
        if end is self.end:
            self.on_leader_lost(self.answered)

    def on_connected(self) -> None:
        raise NotImplementedError

    def on_unreachable(self) -> None:
        raise NotImplementedError

    def on_dismissed(self, outcome: Recorded) -> None:
        raise NotImplementedError

    def on_refused(self) -> None:
        raise NotImplementedError

    def on_leader_lost(self, last_answer: float | None) -> None:
        raise NotImplementedError
