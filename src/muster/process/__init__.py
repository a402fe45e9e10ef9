"""Owning processes: everything started is gone when its scope is closed or its owner dies. Standard library only."""

from muster.process.exit import Exit, signal_name
from muster.process.keeper import become_subreaper
from muster.process.scope import Closed, Owned, Scope, SpawnError, source_of, sweep

__all__ = [
    "Closed",
    "Exit",
    "Owned",
    "Scope",
    "SpawnError",
    "become_subreaper",
    "signal_name",
    "source_of",
    "sweep",
]
