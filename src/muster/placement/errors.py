"""What goes wrong with things that are placed, with what a reader needs to act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN_BYTES = 2000  # of a log's end


class PlacementError(RuntimeError):
    """No place could be had: the plan's explanation is in the message."""


class NeverFits(PlacementError):
    """Not even if nothing else ran on the nodes there are."""


class OwnedElsewhere(RuntimeError):
    """The name belongs to another owner, who is alive."""


class SubprocessError(RuntimeError):
    """A managed program failed. `debug_context` has what is known: exit, node, pid, log file, its last lines."""

    def __init__(self, message: str, debug_context: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.debug_context = dict(debug_context or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.debug_context)

    def __str__(self) -> str:
        known = {key: value for key, value in self.debug_context.items() if value not in (None, "")}
        tail = str(known.pop("log_tail", ""))[-SHOWN_BYTES:].rstrip()
        facts = ", ".join(f"{key} {value}" for key, value in known.items())
        lines = [f"{self.message} ({facts})" if facts else self.message]
        return "\n".join([*lines, *(f"  | {line}" for line in tail.splitlines())])
