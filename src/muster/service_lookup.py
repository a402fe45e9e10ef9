"""`muster.service()`: a process of the job looks up the endpoint of a service.

Ray's workers have variables only of services on their own node, which are known before Ray starts. The record in
MUSTER_SERVICES_DIR has the current endpoints of all nodes.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

RECORD_POLL_S = 0.2


def service(name: str, timeout: float = 60.0) -> str:
    """Return the URL of a service of this run: of this node's instance if there is one, else of the first ready one.

    Callable in the driver, in Ray tasks and actors, in ranks of a gang, and in guests. Waits up to `timeout` seconds
    until the service is ready. Raises LookupError if it is not, if the job has no such service, and outside a run.
    """
    directory = os.environ.get("MUSTER_SERVICES_DIR")
    if directory is None:
        raise LookupError(f"no service {name!r}: this process does not belong to a run with services")
    end = time.monotonic() + timeout
    while (url := _find(directory, name)) is None:
        if time.monotonic() >= end:
            raise LookupError(_missing(directory, name, timeout))
        time.sleep(RECORD_POLL_S)
    return url


def _find(directory: str, name: str) -> str | None:
    record = _read(os.path.join(directory, f"{name}.json"))
    cycle = os.environ.get("MUSTER_CYCLE")
    if not record or (cycle is not None and str(record.get("cycle")) != cycle):
        return None  # not written yet, or of the cycle before
    urls = [one["url"] for one in record["instances"] if one["state"] == "ready" and one["url"]]
    own = os.environ.get("MUSTER_SERVICE_" + re.sub(r"[^A-Z0-9]", "_", name.upper()))
    if own in urls:
        return own
    return None if record["local"] or not urls else str(urls[0])  # another node's loopback is not reachable


def _read(path: str) -> dict[str, Any]:
    try:
        os.listdir(os.path.dirname(path))  # a network filesystem may cache that the file was missing
        with open(path, encoding="utf-8") as file:
            record: dict[str, Any] = json.load(file)
            return record
    except (OSError, ValueError):
        return {}


def _missing(directory: str, name: str, timeout: float) -> str:
    try:
        known = sorted(file[: -len(".json")] for file in os.listdir(directory) if file.endswith(".json"))
    except OSError:
        known = []
    if name in known:
        return f"service {name!r} was not ready within {timeout:g} s; see `muster status`"
    return f"the job has no service {name!r}; it has {', '.join(known) or 'none that has started'}"
