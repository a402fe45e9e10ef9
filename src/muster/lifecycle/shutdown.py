"""How a run ends: the driver first, then the nodes under it, then the word that it is over. No I/O, no clock."""

from __future__ import annotations

from muster.lifecycle import events as m
from muster.lifecycle.bring_up import Rounds
from muster.lifecycle.config import FINISH_TIMEOUT_S
from muster.lifecycle.events import Command, EndDriver, RunOutcome
from muster.lifecycle.states import RunState


class Shutdown(Rounds):
    """The part of the protocol that leads from a reason for the end to the end."""

    def _finish(self, outcome: RunOutcome, now: float, grace: float) -> list[Command]:
        """Record the outcome, unless there is one; end the driver first, then the nodes under it."""
        if self.outcome is None:
            self.outcome = outcome
        first, told = self.state is not RunState.FINISHING, self.state in (RunState.FINISHING, RunState.RESTARTING)
        if first:
            self._move_run(RunState.FINISHING)
        if self.driver_running:
            # A later reason may leave less time than the first, never more.
            ends = now + grace + FINISH_TIMEOUT_S
            if not told or (self.deadline is not None and ends < self.deadline):
                self.deadline = ends
                return [EndDriver(grace)]
            return []
        if first:
            self.deadline = now + FINISH_TIMEOUT_S
        stops = [stop for node in self.nodes for stop in self._stop_node(node.rank)]
        return stops + self._maybe_conclude()

    def _maybe_conclude(self) -> list[Command]:
        """Conclude when every node that joined has left."""
        if self.state is not RunState.FINISHING or self.driver_running or self._held:
            return []
        return self._conclude()

    def _conclude(self) -> list[Command]:
        assert self.outcome is not None
        self._move_run(RunState(self.outcome.state))
        self.deadline = None
        return [m.Conclude()]
