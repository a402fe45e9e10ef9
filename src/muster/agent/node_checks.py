"""The built-in checks of one node, as its agent requests them: before the job, on a waiting spare, after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from muster.agent.check_process import CheckProcess
from muster.agent.control.messages import ChecksDone
from muster.agent.health.checks.finding import Verdict
from muster.agent.health.checks.runner import NodeCheckResult
from muster.agent.job import Identity, Job
from muster.lifecycle.node_checks import repeated_checks

logger = logging.getLogger(__name__)


class NodeChecks:
    """Runs the checks that the job selects, in the process for them."""

    def __init__(self, identity: Identity, process: CheckProcess) -> None:
        self._identity, self._process = identity, process
        self._selected: dict[str, float | None] = {}
        self._first: asyncio.Future[ChecksDone] | None = None

    @property
    def begun(self) -> bool:
        """Whether `first_result` returns the result of checks before the job."""
        return self._first is not None

    def begin(self, job: Job) -> None:
        """Start the checks before the job. The agent connects to its leader meanwhile."""
        self._selected = job.selected_checks
        if self._selected:
            self._first = asyncio.ensure_future(self._run(self._selected))

    async def first_result(self) -> ChecksDone:
        """Return the result of the checks before the job, to one leader after another."""
        assert self._first is not None
        return await asyncio.shield(self._first)

    async def repeat(self, seconds: float | None = None) -> ChecksDone:
        """Run the checks again that may be repeated. `seconds`: the limit, after which nothing is known."""
        running = self._run(repeated_checks(self._selected))
        try:
            return await asyncio.wait_for(running, seconds)
        except asyncio.TimeoutError:
            logger.warning("the checks were not done within %g s", seconds)
            return ChecksDone(None, {})

    async def _run(self, selected: Mapping[str, float | None]) -> ChecksDone:
        results = await self._process.run(selected, self._identity.run.root)
        for one in results:
            level = logging.WARNING if one.verdict is Verdict.FAILED else logging.DEBUG
            logger.log(level, "check %s %s in %.3f s: %s", one.name, one.verdict.value, one.seconds, one.reason)
        return summary(results)


def summary(results: list[NodeCheckResult]) -> ChecksDone:
    """Return the report to the leader: the failures in one line, and the values by which nodes are compared."""
    failures = [f"{one.name}: {one.reason}" for one in results if one.verdict is Verdict.FAILED]
    measured = {one.name: one.measured for one in results if one.measured is not None}
    return ChecksDone("; ".join(failures) or None, measured)
