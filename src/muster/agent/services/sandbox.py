"""A sandbox as a service: what it is started with on a node, and who the others are."""

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
HTTP, BETWEEN = "http", "between"  # its two ports: for clients on this node, and for the other nodes
READY_FILE, MEMBERS_FILE = "ready.json", "members.json"


def ports(given: Mapping[str, int | str]) -> dict[str, int | str]:
    return {HTTP: given.get(HTTP, "auto"), BETWEEN: "auto"}


def command(agent: str) -> list[str]:
    """Out of the run's own archive, which is there wherever the agent is."""
    return [sys.executable, "-I", "-S", agent, "sandbox", "-"]


def token(of_run: bytes) -> str:
    """Made from the run's, which never travels."""
    return hmac.new(of_run, b"sandbox", hashlib.sha256).hexdigest()


def settings(
    chosen: Mapping[str, Any], leased: Mapping[str, int], address: str, directory: str, secret: str
) -> dict[str, Any]:
    """What it reads on its stdin."""
    return {
        **chosen,
        "port": leased[HTTP],
        "listen": join_address(address, leased[BETWEEN]),
        "token": secret,
        "ready_file": os.path.join(directory, READY_FILE),
        "members_file": os.path.join(directory, MEMBERS_FILE),
    }


def between(address: str, leased: Mapping[str, int]) -> str:
    return f"http://{join_address(address, leased[BETWEEN])}"


def write_members(directory: str, version: int, endpoints: Sequence[str]) -> None:
    write_atomic(
        os.path.join(directory, MEMBERS_FILE), json.dumps({"version": version, "endpoints": list(endpoints)}) + "\n"
    )
