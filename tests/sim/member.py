"""What an agent does for its own node: obey one leader, answer its beats at once, report, leave nothing behind."""

from __future__ import annotations

from typing import Any

from muster.election.membership import LEASE_S, Membership
from tests.sim.agent import Agent, Surroundings
from tests.sim.host import DRIVER, RAY, SERVICE, Host, Running
from tests.sim.network import End

HANDSHAKE_S = 5.0
START_S, CLEAN_S = (0.2, 4.0), (0.05, 1.5)  # what Ray takes to come up, and to end


class Member(Agent):
    """Under one leader; how it comes to the next one is the follower's part."""

    def __init__(self, around: Surroundings, host: Host) -> None:
        super().__init__(around, host)
        self.end: End | None = None  # the connection to the leader
        self.membership: Membership | None = None
        self.term, self.leader_rank = -1, 0  # whom it follows
        self.cycle = 0
        self.answered = 0.0  # when a leader last had a sign of life from us
        self._orders: list[tuple[Any, ...]] = []  # that wait for one that takes time
        self._busy = False
        self._greeted = False

    # -- joining ------------------------------------------------------------------------------------------------

    def join(self, term: int, rank: int) -> None:
        """Connect; what is not answered in time has failed."""
        self.term, self.leader_rank, self._greeted = term, rank, False
        self.end = end = self.around.network.connect(self, self, rank, term)
        self.after(HANDSHAKE_S, self._too_late, end)

    def _too_late(self, end: End) -> None:
        if end is self.end and not self._greeted:
            end.close()
            self.ended(end)

    def _greet(self, end: End) -> None:
        """From here on the leader may count us, whatever becomes of the connection."""
        self._greeted, self.answered = True, self.now
        self._orders, self._busy = [], False
        end.send("greeting", self.rank, self.membership, self.now)
        self.listen(end, self._silent)

    @property
    def leads(self) -> bool:
        return self.leader_rank == self.rank

    # -- what the leader says -------------------------------------------------------------------------------------

    def heard(self, end: End, message: tuple[Any, ...]) -> None:
        """Beats and charters are answered at once, whatever an order takes."""
        if end is not self.end:
            return  # of a leader that was left
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
            self._orders.append(message)
        else:
            self._handle(end, message)

    def _answer(self, end: End, sent: float | None) -> None:
        """With the time that the beat carried; without one we tell only what we know."""
        self.answered = self.now
        end.send("answer", sent, self.membership.version if self.membership else -1, self.now)

    def _renew(self, echo: float) -> None:
        """From when we said what the leader has heard last: before it calls us silent our processes are gone."""
        if self.membership is not None and not self.leads:
            self.host.renew(echo + LEASE_S)

    def _handle(self, end: End, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "welcome":
            self.cycle = message[1]
            self.around.watch.welcomed(self.rank, self.term, message[1])
        elif kind == "start":
            process = self.host.start(RAY, self.term, self.cycle, message[1])
            if process is not None:
                process.on_end = lambda how: self._failed(end, process)
                self.after(self.around.world.between(*START_S), self._started, end, process)
        elif kind == "services":
            for name in message[1]:
                service = self.host.start(SERVICE, self.term, self.cycle, 0)
                if service is not None:
                    self.after(self.around.world.between(*START_S), self._serves, end, name, service)
        elif kind == "stop":
            self._busy = True
            self.after(self._end_processes(), self._stopped, end, message[1])
        elif kind == "retire":
            self.loss_reason(end, owed=None)
        elif kind == "bye":
            self.leave(message[1])

    def _started(self, end: End, process: Running) -> None:
        if not process.ended and end is self.end:
            end.send("ready", process.cycle)

    def _serves(self, end: End, name: str, process: Running) -> None:
        if not process.ended and end is self.end:
            self.around.watch.serves(self.rank, name, process)
            end.send("service", name, process.cycle)

    def _failed(self, end: End, process: Running) -> None:
        """By itself: whoever ends it on purpose has taken this back."""
        if self.alive and end is self.end:
            end.send("failed", "ray", "Ray exited with 1", process.cycle)

    def _end_processes(self) -> float:
        """How long it takes."""
        for process in list(self.host.processes):
            if process.kind != DRIVER:
                process.on_end = lambda how: None
        return self.around.world.between(*CLEAN_S)

    def _stopped(self, end: End, cycle: int) -> None:
        for process in [process for process in self.host.processes if process.kind != DRIVER]:
            self.host.end(process, "was ended by SIGTERM")
        if end is not self.end:
            return
        self._busy = False
        end.send("gone", cycle)
        while self._orders and not self._busy and end is self.end and self.alive:
            self._handle(end, self._orders.pop(0))

    def report(self, phase: str) -> None:
        """Something is wrong with this node."""
        if self.end is not None and self.alive and not self.stopped:
            self.say(f"reports a failure ({phase})")
            self.end.send("failed", phase, f"{phase} failed", self.cycle)

    # -- the loss of it -----------------------------------------------------------------------------------------

    def ended(self, end: End) -> None:
        if end is self.end:
            self.loss_reason(end, self.answered if self._greeted else None)

    def _silent(self, end: End) -> None:
        """It may live: the connection stays open, since an ended one tells it something."""
        if end is self.end:
            self.loss_reason(end, self.answered)

    def loss_reason(self, end: End, owed: float | None) -> None:
        raise NotImplementedError
