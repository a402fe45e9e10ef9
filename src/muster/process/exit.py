"""How a process ended, as data."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Exit:
    """A process's end: an exit code or a signal; neither when its keeper was lost and nobody saw it end."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def from_status(cls, status: int) -> Exit:
        """From what waitpid returned."""
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(code=os.WEXITSTATUS(status))

    @property
    def shell_code(self) -> int:
        """The code a shell would report: 128+n for signal n; 125 when the end was not seen."""
        if self.signal is not None:
            return 128 + self.signal
        return 125 if self.code is None else self.code

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was ended by {signal_name(self.signal)}"
        return "was lost" if self.code is None else f"exited with {self.code}"


def signal_name(number: int) -> str:
    """SIGTERM for 15; the bare number where it has no name (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
