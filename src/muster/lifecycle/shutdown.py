"""The end of a run: the driver ends first, then the nodes, then the run is concluded. No I/O, no clock."""

from __future__ import annotations

from muster.lifecycle import events as m
from muster.lifecycle.bring_up import BringUp
from muster.lifecycle.config import FINISH_TIMEOUT_S
from muster.lifecycle.events import Command, EndDriver, RunOutcome
from muster.lifecycle.states import RunState


class Shutdown(BringUp):
    """The transitions from `finishing` to the end."""

    def _finish(self, outcome: RunOutcome, now: float, grace: float) -> list[Command]:
        """Record the outcome unless one is recorded; end the driver, or the nodes if it has ended."""
        if self.outcome is None:
            self.outcome = outcome
        first, ending = self.state is not RunState.FINISHING, self.state in (RunState.FINISHING, RunState.RESTARTING)
        if first:
            self._set_run_state(RunState.FINISHING)
        if self.driver_running:
            # A later reason may shorten the deadline, but never extend it.
            ends = now + grace + FINISH_TIMEOUT_S
            if not ending or (self.deadline is not None and ends < self.deadline):
                self.deadline = ends
                return [EndDriver(grace)]
            return []
        if first:
            self.deadline = now + FINISH_TIMEOUT_S
        stops = [stop for node in self.nodes for stop in self._stop_node(node.rank)]
        return stops + self._maybe_conclude()

    def _maybe_conclude(self) -> list[Command]:
        """Conclude when every node that joined has left."""
        if self.state is not RunState.FINISHING or self.driver_running or self._joined:
            return []
        return self._conclude()

    def _conclude(self) -> list[Command]:
        assert self.outcome is not None
        self._set_run_state(RunState(self.outcome.state))
        self.deadline = None
        return [m.Conclude()]
