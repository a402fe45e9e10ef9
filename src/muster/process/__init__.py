"""Owning processes: everything started is gone when its scope is closed or its owner dies. Standard library only."""

from muster.process.ending import Left, sweep
from muster.process.exit import ANOTHER, ITSELF, OWNER, Exit, signal_name
from muster.process.log import Log
from muster.process.owned import Owned
from muster.process.program import source_of
from muster.process.scope import Closed, Scope, SpawnError
from muster.process.tag import Swept, find_tagged, sweep_tagged
from muster.process.tree import become_subreaper, descendants

__all__ = [
    "ANOTHER",
    "ITSELF",
    "OWNER",
    "Closed",
    "Exit",
    "Left",
    "Log",
    "Owned",
    "Scope",
    "SpawnError",
    "Swept",
    "become_subreaper",
    "descendants",
    "find_tagged",
    "signal_name",
    "source_of",
    "sweep",
    "sweep_tagged",
]
