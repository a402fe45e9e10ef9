"""What a supervisor does with its processes when their lease expires. No I/O, no clock.

    state      at a check                                                    action     next state
    running    the lease lasts                                               NONE       running
               it has expired                                                KILL       killed
               it has expired, and the supervisor was stopped until less     STOP       held
               than RESUME_GRACE_S ago
    held       the lease lasts: the owner has renewed it                     CONTINUE   running
               RESUME_GRACE_S have passed since the supervisor was stopped   KILL       killed
               another supervisor of the owner has killed its processes      KILL       killed
               else: stop them again, since others may have continued them   STOP       held
    killed     (always)                                                      KILL       killed

A supervisor that was stopped was so together with its owner, for example by `scontrol suspend`: the owner had no chance
to renew the lease, and another node may have taken over or not. So no process runs until the owner knows. An owner that
stops while its supervisors run gets no such time. A stopped process does nothing that a dead one could not do, so
fencing needs no more than this. Only a renewed lease continues it. Part of the supervisor's program.
"""

from __future__ import annotations

from enum import Enum

from muster.process.running_time import RunningTime

# Nodes of a job are resumed within about a second, and then a lease needs two heartbeats. The processes are dead
# before the other nodes, if they have lost this one, consider it silent (election/timing.py).
RESUME_GRACE_S = 7.5


class LeaseAction(Enum):
    """What the supervisor does with its processes; see the module's table."""

    NONE = "none"
    STOP = "stop"
    CONTINUE = "continue"
    KILL = "kill"


class LeaseEnforcer:
    """Decides for one supervisor, which calls `check` at least every half second while it runs."""

    def __init__(self) -> None:
        self._running = RunningTime()
        self._started = self._killed = False
        self._held = False
        self._grace_until = 0.0

    def check(self, now: float, expired: bool, fenced: bool) -> LeaseAction:
        """Return what is to be done at `now`. `fenced`: another supervisor of the owner has killed its processes.

        A supervisor that starts under an expired lease holds its processes, too: it has none yet.
        """
        resumed, self._started = self._running.observe(now) > 0 or not self._started, True
        if self._killed:
            return LeaseAction.KILL
        if resumed:
            self._grace_until = now + RESUME_GRACE_S
        if not expired:
            held, self._held = self._held, False
            return LeaseAction.CONTINUE if held else LeaseAction.NONE
        if now < self._grace_until and not fenced:
            self._held = True
            return LeaseAction.STOP
        self._killed = True
        return LeaseAction.KILL
