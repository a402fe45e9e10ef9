"""The errors of placement, with the facts that a reader needs to act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN_LOG_BYTES = 2000  # of the end of a log


class PlacementError(RuntimeError):
    """There is no room for a request; the message has the plan's explanation."""


class NeverFits(PlacementError):
    """The request would not fit even if nothing else ran on the existing nodes."""


class OwnedElsewhere(RuntimeError):
    """The server's name belongs to another owner, which may be alive."""


class SubprocessError(RuntimeError):
    """A managed program failed. `debug_context` holds exit, node, pid, log file and the last log lines, if known."""

    def __init__(self, message: str, debug_context: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.debug_context = dict(debug_context or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.debug_context)

    def __str__(self) -> str:
        known = {key: value for key, value in self.debug_context.items() if value not in (None, "")}
        tail = str(known.pop("log_tail", ""))[-SHOWN_LOG_BYTES:].rstrip()
        facts = ", ".join(f"{key} {value}" for key, value in known.items())
        lines = [f"{self.message} ({facts})" if facts else self.message]
        return "\n".join([*lines, *(f"  | {line}" for line in tail.splitlines())])
