"""How `muster attach` passes a session to `agent.pyz attach` on a node."""

from __future__ import annotations

NO_RAY_ADDRESS = "-"  # the address argument of a run without Ray
SESSION_COMMAND = "MUSTER_SESSION_COMMAND"  # a variable: every user of the node can read a command line
