"""Ray's daemons of a run on this machine."""

from __future__ import annotations

from pathlib import Path

from muster.process import descendants
from tests.running import wait_for


def daemon_below(agent: int, name: str) -> int:
    """The pid of the agent's raylet or gcs_server."""

    def look() -> int | None:
        return next((pid for pid in descendants(agent) if comm(pid) == name), None)

    return wait_for(f"a {name} below {agent}", look)


def comm(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""
