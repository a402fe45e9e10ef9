"""Replicas of endpoints as programs of the run publish them (placement/runtime/endpoint.py), in one file for each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from muster.rundir import AttemptPaths, read_record


@dataclass(frozen=True)
class ReplicaList:
    """The replicas of one endpoint. A version is new with every change, also after the program was restarted."""

    version: int = 0
    urls: frozenset[str] = frozenset()


class PublishedReplicas:
    """Polled regularly, off the event loop."""

    def __init__(self, attempt: AttemptPaths, names: Sequence[str]) -> None:
        self._paths = {name: attempt.endpoint_replicas(name) for name in names}
        self._seen: dict[str, tuple[int, int]] = {}

    def poll(self, cycle: int) -> dict[str, ReplicaList]:
        """Return the lists of this cycle that are new or have changed, by endpoint."""
        return {name: found for name in self._paths if (found := self._read(name, cycle)) is not None}

    def _read(self, name: str, cycle: int) -> ReplicaList | None:
        try:
            found = os.stat(self._paths[name])
        except OSError:
            return None
        identity = found.st_ino, found.st_mtime_ns
        record = read_record(self._paths[name]) if identity != self._seen.get(name) else {}
        if record.get("cycle") != cycle:  # of an earlier cycle, whose programs have ended
            return None
        self._seen[name] = identity
        return ReplicaList(int(record["version"]), frozenset(record["urls"]))
