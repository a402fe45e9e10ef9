"""Replicas behind an endpoint of the run: `kind: endpoint` in the job file, `endpoint="NAME"` of `Replicas`.

The leader polls the file that is written here and sends its content to the proxies of all nodes. When they all serve it
and have no request left at other replicas, it puts the version into the record of the endpoint.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import Any

LOG = logging.getLogger("muster.placement")
CONFIRM_POLL_S = 0.2
ADD_TIMEOUT_S = 30.0  # until all proxies serve a new replica


class EndpointPublisher:
    """Publishes the replicas of one endpoint. Only one process may publish for an endpoint."""

    def __init__(self, name: str) -> None:
        """Raise LookupError if the job has no such endpoint."""
        directory = os.environ.get("MUSTER_SERVICES_DIR", "")
        self._name, self._cycle = name, int(os.environ.get("MUSTER_CYCLE", "0"))
        self._record = os.path.join(directory, f"{name}.json")
        self._file = os.path.join(directory, f"{name}.replicas")
        self._lock = threading.Lock()
        self._urls: list[str] = []
        self._version = 0
        if not directory or "replicas_version" not in self._read():
            raise LookupError(
                f"the run has no endpoint {name!r} for replicas: add `{name}: {{kind: endpoint}}` to `services` in the"
                " job file"
            )

    def publish(self, urls: Iterable[str]) -> int:
        """Replace the replicas; return the version of the list, the same as before if it is unchanged."""
        with self._lock:
            wanted = sorted(urls)
            if wanted != self._urls:
                self._version = max(time.time_ns(), self._version + 1)  # newer than those of an earlier process
                temporary = f"{self._file}.{os.getpid()}.new"
                with open(temporary, "w", encoding="utf-8") as file:
                    json.dump({"version": self._version, "cycle": self._cycle, "urls": wanted}, file)
                os.replace(temporary, self._file)
                self._urls = wanted
            return self._version

    def wait_until_served(self, version: int, timeout_s: float) -> bool:
        """Wait until all nodes serve this list, and no request is at a replica that is not in it."""
        end = time.monotonic() + timeout_s
        while version and (self._read().get("replicas_version") or 0) < version:
            if time.monotonic() >= end:
                LOG.warning("endpoint %s: not all nodes serve its replicas after %g s", self._name, timeout_s)
                return False
            time.sleep(CONFIRM_POLL_S)
        return True

    def _read(self) -> dict[str, Any]:
        try:
            with open(self._record, encoding="utf-8") as file:
                record = json.load(file)
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) and record.get("cycle") == self._cycle else {}
