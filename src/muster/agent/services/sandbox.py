"""Settings and members file of a sandbox that runs as a service."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from muster.agent.ray.settings import join_address
from muster.rundir import write_atomic

LOOPBACK = "127.0.0.1"
HTTP_PORT, PEER_PORT = "http", "between"  # names of its ports: for clients on this node, and for other nodes
READY_FILE, MEMBERS_FILE = "ready.json", "members.json"


def ports(given: Mapping[str, int | str]) -> dict[str, int | str]:
    return {HTTP_PORT: given.get(HTTP_PORT, "auto"), PEER_PORT: "auto"}


def command(agent: str) -> list[str]:
    """Return the command line; the sandbox is part of the run's archive, which exists on every node."""
    return [sys.executable, "-I", "-S", agent, "sandbox", "-"]


def token(run_token: bytes) -> str:
    """Derive the sandbox's token from the run's, which is never sent over the network."""
    return hmac.new(run_token, b"sandbox", hashlib.sha256).hexdigest()


def settings(
    chosen: Mapping[str, Any], leased: Mapping[str, int], address: str, directory: str, secret: str
) -> dict[str, Any]:
    """Return the settings that the sandbox reads from its stdin."""
    return {
        **chosen,
        "port": leased[HTTP_PORT],
        "listen": join_address(address, leased[PEER_PORT]),
        "token": secret,
        "ready_file": os.path.join(directory, READY_FILE),
        "members_file": os.path.join(directory, MEMBERS_FILE),
    }


def peer_url(address: str, leased: Mapping[str, int]) -> str:
    return f"http://{join_address(address, leased[PEER_PORT])}"


def write_members(directory: str, version: int, endpoints: Sequence[str]) -> None:
    write_atomic(
        os.path.join(directory, MEMBERS_FILE), json.dumps({"version": version, "endpoints": list(endpoints)}) + "\n"
    )
