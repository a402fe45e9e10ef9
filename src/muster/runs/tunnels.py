"""SSH commands that reach a port on the loopback of a run's node from the user's machine."""

from __future__ import annotations

import getpass
import shlex
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tunnel:
    """A port on the loopback of a node."""

    host: str
    port: int

    def ssh(self, local_port: int, through: str | None = None) -> list[str]:
        """Return the command that opens the tunnel: from this host, or with `through` (the login node) from outside."""
        jump = ["-J", through] if through else []
        return ["ssh", "-N", "-L", f"{local_port}:127.0.0.1:{self.port}", *jump, self.host]


def this_host() -> str:
    """Return the name of this host for use from other hosts."""
    name = socket.getfqdn()
    return socket.gethostname() if name.startswith("localhost") else name


def tunnel_command(port: int) -> str:
    """Return the command for the user's machine that reaches a port on the loopback of this host."""
    return shlex.join(["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", f"{getpass.getuser()}@{this_host()}"])


def dashboard_access(status: dict[str, Any]) -> dict[str, str] | None:
    """Return the address of a run's Ray dashboard and the tunnel command it needs, empty if none; None without one."""
    ray = status.get("ray")
    place = ray.get("dashboard") if isinstance(ray, dict) else None
    if not isinstance(place, dict) or not isinstance(place.get("port"), int):
        return None
    tunnel = Tunnel(str(place.get("host")), place["port"])
    through = f"{getpass.getuser()}@{this_host()}"
    command = "" if status.get("backend") == "local" else shlex.join(tunnel.ssh(tunnel.port, through))
    return {"address": f"http://127.0.0.1:{tunnel.port}", "command": command}
