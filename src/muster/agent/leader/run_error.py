"""The run's error: published at once, and again with the last lines of the log that explains it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from muster.agent.leader.files import Files
from muster.agent.leader.inbox import Inbox
from muster.agent.leader.status_publisher import PublishedError, StatusPublisher
from muster.lifecycle.roles import RunNode


class RunError:
    """Keeps the first error unless the run continues after it. Logs are read after the event, so none is delayed."""

    def __init__(self, publisher: StatusPublisher, files: Files, inbox: Inbox) -> None:
        self._publisher, self._files, self._inbox = publisher, files, inbox
        self._reading: set[asyncio.Future[Any]] = set()

    def note(self, node: RunNode, phase: str, reason: str, log: str | None, tail: Sequence[str] = ()) -> None:
        """Publish an error unless there is one. Its last lines are those of `log`, or `tail` without a log."""
        error = self._publisher.note_error(node, phase, reason)
        if error is not None and log is None:
            self._publisher.explain_error(error, tail)
        elif error is not None and log is not None:
            reading = self._inbox.spawn(self._explain(error, log))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)

    def drop(self) -> None:
        """Remove the error from the status: the run continues, or has succeeded. The event stays."""
        self._publisher.error = None

    async def settle(self) -> None:
        """Wait until every error is published with its last lines. A log that cannot be read takes half a second."""
        if self._reading:
            await asyncio.wait(self._reading)

    async def _explain(self, error: PublishedError, log: str) -> None:
        self._publisher.explain_error(error, await self._files.tail(log))
