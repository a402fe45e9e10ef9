"""What reaches the lead through files only: a request to stop, and the launcher's words about tasks that ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from muster.agent.steps import EarlyEnd, StepsLog
from muster.board import AttemptPaths, read_json


class Outside:
    """Looked at regularly, off the event loop."""

    def __init__(self, attempt: AttemptPaths, hosts: Sequence[str] = ()) -> None:
        self._attempt = attempt
        self._steps = StepsLog(attempt.steps_log, hosts)

    def look(self) -> tuple[dict[str, Any] | None, list[EarlyEnd]]:
        """The stop request, if there is one, and the tasks whose end is news.

        By listing first: a network filesystem may remember for half a minute that a file was not there.
        """
        path = self._attempt.stop_request
        try:
            asked = os.path.basename(path) in os.listdir(self._attempt.root)
        except OSError:
            asked = False
        return read_json(path) if asked else None, self._steps.look()
