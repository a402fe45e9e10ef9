"""Own processes: every process of a scope ends when the scope is closed or its owner dies. Standard library only."""

from muster.process.bootstrap import source_of
from muster.process.exit import ANOTHER, ITSELF, OWNER, Exit, signal_name
from muster.process.log import Log
from muster.process.managed import ManagedProcess
from muster.process.orphan_scan import SweepResult, find_tagged, sweep_tagged
from muster.process.proctree import become_subreaper, descendants
from muster.process.scope import CloseResult, Scope, ScopeWatcher, SpawnError
from muster.process.unkillable import LeftoverProcess, sweep

__all__ = [
    "ANOTHER",
    "ITSELF",
    "OWNER",
    "CloseResult",
    "Exit",
    "LeftoverProcess",
    "Log",
    "ManagedProcess",
    "Scope",
    "ScopeWatcher",
    "SpawnError",
    "SweepResult",
    "become_subreaper",
    "descendants",
    "find_tagged",
    "signal_name",
    "source_of",
    "sweep",
    "sweep_tagged",
]
