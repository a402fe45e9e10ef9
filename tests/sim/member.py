"""An agent's work for its node: it executes one leader's commands, answers heartbeats, reports, and cleans up."""

from __future__ import annotations

from typing import Any

from muster.election.membership import Membership
from muster.election.timing import LEASE_S
from tests.sim.agent import Agent, Environment
from tests.sim.host import DRIVER, RAY, SERVICE, Host, SimProcess
from tests.sim.network import ConnectionEnd

HANDSHAKE_TIMEOUT_S = 5.0
START_S, CLEANUP_S = (0.2, 4.0), (0.05, 1.5)  # durations of starting and ending Ray


class Member(Agent):
    """A member under one leader; Follower adds the change of leaders."""

    def __init__(self, env: Environment, host: Host) -> None:
        super().__init__(env, host)
        self.end: ConnectionEnd | None = None  # the connection to the leader
        self.membership: Membership | None = None
        self.term, self.leader_rank = -1, 0  # of the leader that it follows
        self.cycle = 0
        self.answered = 0.0  # time of the last message to the leader
        self._commands: list[tuple[Any, ...]] = []  # that wait for the current one to finish
        self._busy = False
        self._greeted = False

    # -- joining ------------------------------------------------------------------------------------------------

    def join(self, term: int, rank: int) -> None:
        """Connect to a candidate or leader, with a timeout."""
        self.term, self.leader_rank, self._greeted = term, rank, False
        self.end = end = self.env.network.connect(self, self, rank, term)
        self.after(HANDSHAKE_TIMEOUT_S, self._handshake_timed_out, end)

    def _handshake_timed_out(self, end: ConnectionEnd) -> None:
        if end is self.end and not self._greeted:
            end.close()
            self.on_closed(end)

    def _greet(self, end: ConnectionEnd) -> None:
        """Send the greeting. From here on the leader may count this member, even if the connection fails."""
        self._greeted, self.answered = True, self.now
        self._commands, self._busy = [], False
        end.send("greeting", self.rank, self.membership, self.now)
        self.listen(end, self._silent)

    @property
    def leads(self) -> bool:
        return self.leader_rank == self.rank

    # -- messages of the leader -----------------------------------------------------------------------------------

    def on_message(self, end: ConnectionEnd, message: tuple[Any, ...]) -> None:
        """Answer heartbeats and memberships at once, even while a command runs."""
        if end is not self.end:
            return  # of a previous leader
        end.wait = self.now
        kind = message[0]
        if kind == "beat":
            self._answer(end, message[1])
            self._renew(message[2])
        elif kind == "charter":
            self.membership = message[1]
            self._answer(end, None)
            self._renew(message[2])
        elif kind == "nonce":
            self._greet(end)
        elif self._busy:
            self._commands.append(message)
        else:
            self._handle(end, message)

    def _answer(self, end: ConnectionEnd, sent: float | None) -> None:
        """Answer with the time in the heartbeat; None only reports the known version."""
        self.answered = self.now
        end.send("answer", sent, self.membership.version if self.membership else -1, self.now)

    def _renew(self, echo: float) -> None:
        """Renew the lease from the send time of our last message that the leader received.

        So the processes here are gone before the leader declares this node silent.
        """
        if self.membership is not None and not self.leads:
            self.host.renew(echo + LEASE_S)

    def _handle(self, end: ConnectionEnd, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "welcome":
            self.cycle = message[1]
            self.env.checker.welcomed(self.rank, self.term, message[1])
        elif kind == "start":
            process = self.host.start(RAY, self.term, self.cycle, message[1])
            if process is not None:
                process.on_end = lambda how: self._failed(end, process)
                self.after(self.env.world.between(*START_S), self._started, end, process)
        elif kind == "services":
            for name in message[1]:
                service = self.host.start(SERVICE, self.term, self.cycle, 0)
                if service is not None:
                    self.after(self.env.world.between(*START_S), self._serves, end, name, service)
        elif kind == "stop":
            self._busy = True
            self.after(self._end_processes(), self._stopped, end, message[1])
        elif kind == "retire":
            self.on_leader_lost(end, last_answer=None)
        elif kind == "bye":
            self.leave(message[1])

    def _started(self, end: ConnectionEnd, process: SimProcess) -> None:
        if not process.ended and end is self.end:
            end.send("ready", process.cycle)

    def _serves(self, end: ConnectionEnd, name: str, process: SimProcess) -> None:
        if not process.ended and end is self.end:
            self.env.checker.serves(self.rank, name, process)
            end.send("service", name, process.cycle)

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
        self._busy = False
        end.send("gone", cycle)
        while self._commands and not self._busy and end is self.end and self.alive:
            self._handle(end, self._commands.pop(0))

    def report(self, phase: str) -> None:
        """Report a failure of this node."""
        if self.end is not None and self.alive and not self.stopped:
            self.log(f"reports a failure ({phase})")
            self.end.send("failed", phase, f"{phase} failed", self.cycle)

    # -- loss of the leader--------------------------------------------------------------------------------------

    def on_closed(self, end: ConnectionEnd) -> None:
        if end is self.end:
            self.on_leader_lost(end, self.answered if self._greeted else None)

    def _silent(self, end: ConnectionEnd) -> None:
        """Handle a silent leader. It may live, so the connection stays open: closing it would send a signal."""
        if end is self.end:
            self.on_leader_lost(end, self.answered)

    def on_leader_lost(self, end: ConnectionEnd, last_answer: float | None) -> None:
        raise NotImplementedError
