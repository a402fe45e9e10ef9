"""Owning processes: everything started is gone when its scope is closed or its owner dies. Standard library only."""

from muster.process.bootstrap import source_of
from muster.process.exit import ANOTHER, ITSELF, OWNER, Exit, signal_name
from muster.process.log import Log
from muster.process.managed import ManagedProcess
from muster.process.orphan_scan import Swept, find_tagged, sweep_tagged
from muster.process.proctree import become_subreaper, descendants
from muster.process.scope import Closed, Scope, SpawnError
from muster.process.unkillable import Left, sweep

__all__ = [
    "ANOTHER",
    "ITSELF",
    "OWNER",
    "Closed",
    "Exit",
    "Left",
    "Log",
    "ManagedProcess",
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
