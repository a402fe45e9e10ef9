"""One listing of an attempt's directory, for everything that a poll looks for.

A listing is current where a network filesystem caches that a file was absent, and costs one operation of its server.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from muster.rundir.paths import AttemptPaths


@dataclass(frozen=True)
class AttemptListing:
    """The names in an attempt's directory."""

    names: frozenset[str]

    @property
    def has_outcome(self) -> bool:
        return "outcome" in self.names

    @property
    def claims(self) -> list[int]:
        """Return the claimed terms, in order."""
        return self._numbers(r"lead-(\d+)\.json")

    @property
    def leaders_gone(self) -> list[int]:
        """Return the terms whose claimant is certified to have ended."""
        return self._numbers(r"lead-(\d+)-gone\.json")

    @property
    def terms(self) -> list[int]:
        """Return the terms whose leader has published a status, in order."""
        return self._numbers(r"status-(\d+)\.json")

    def _numbers(self, pattern: str) -> list[int]:
        return sorted(int(match[1]) for match in (re.fullmatch(pattern, name) for name in self.names) if match)


def read_listing(attempt: AttemptPaths) -> AttemptListing | None:
    """Return the names in the attempt's directory; None if it cannot be read."""
    try:
        return AttemptListing(frozenset(os.listdir(attempt.root)))
    except OSError:
        return None
