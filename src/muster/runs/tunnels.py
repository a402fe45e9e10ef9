"""How a port on the loopback of a run's node is reached from where the user sits."""

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
        """The command that opens it: here, or with `through` (the login node) from outside."""
        jump = ["-J", through] if through else []
        return ["ssh", "-N", "-L", f"{local_port}:127.0.0.1:{self.port}", *jump, self.host]


def this_host() -> str:
    """The name by which others may know this host."""
    name = socket.getfqdn()
    return socket.gethostname() if name.startswith("localhost") else name


def to_here(port: int) -> str:
    """The command for one's own machine that reaches a port on the loopback of this host."""
    return shlex.join(["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", f"{getpass.getuser()}@{this_host()}"])


def to_dashboard(status: dict[str, Any]) -> dict[str, str] | None:
    """Ray's dashboard of a run: its address, and the command that has to be given before, if one has."""
    ray = status.get("ray")
    place = ray.get("dashboard") if isinstance(ray, dict) else None
    if not isinstance(place, dict) or not isinstance(place.get("port"), int):
        return None
    tunnel = Tunnel(str(place.get("host")), place["port"])
    through = f"{getpass.getuser()}@{this_host()}"
    command = "" if status.get("backend") == "local" else shlex.join(tunnel.ssh(tunnel.port, through))
    return {"address": f"http://127.0.0.1:{tunnel.port}", "command": command}
