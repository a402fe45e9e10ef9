"""A process for checks that records the requests and gives fixed results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from muster.agent.check_process import CheckProcess
from muster.agent.health.checks.runner import NodeCheckResult


class RecordedProcess(CheckProcess):
    """Records which checks are requested, and finds a full disk."""

    def __init__(self, *results: NodeCheckResult) -> None:
        super().__init__(None)
        self.requests: list[list[str]] = []
        self.results = list(results)
        self.answers = asyncio.Event()
        self.answers.set()

    async def run(self, selected: Mapping[str, float | None], run_dir: str) -> list[NodeCheckResult]:
        self.requests.append(list(selected))
        await self.answers.wait()
        return self.results
