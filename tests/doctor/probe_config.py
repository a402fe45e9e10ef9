"""The configuration of a probe, as `muster doctor` passes it to a node."""

from __future__ import annotations

import sys
from typing import Any


def probe_config(**changes: Any) -> dict[str, Any]:
    """Return the configuration for one node that does not look at a shared directory."""
    config: dict[str, Any] = {
        "nodes": 1,
        "directory": None,
        "canary": "",
        "timeouts": {},
        "runs_dir": "/",
        "workdir": "/",
        "python": sys.executable,
        "ray": False,
        "port_base": None,
        "block_size": 100,
    }
    assert changes.keys() <= config.keys()
    return {**config, **changes}
