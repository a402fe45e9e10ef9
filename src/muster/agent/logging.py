"""The agent's own words, in its node's log."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """One line. A log that cannot be written (a full disk) must not end the run."""
    with contextlib.suppress(OSError):
        print(f"muster: {text}", file=sys.stderr, flush=True)
