"""The replicas behind an endpoint, and the choice of one for each request. Pure: no sockets, tasks or clock.

state      meaning                                                              gets new requests
joining    a new member that was not checked yet                                no
ready      its last check succeeded                                             yes
unhealthy  checks or a connection failed, until a check succeeds                no
draining   it reports in its health response that it is draining                no
leaving    it is not a member any more, but processes requests of this proxy    no
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

JOINING, READY, UNHEALTHY, DRAINING, LEAVING = "joining", "ready", "unhealthy", "draining", "leaving"
FAILED_CHECKS_MAX = 2  # consecutive failed checks that make a ready replica unhealthy: a busy server may miss one
REFUSED_RESPONSES_MAX = 3  # consecutive responses of REFUSING_STATUSES that do the same
REFUSING_STATUSES = frozenset([502, 503, 504])  # the server could not process the request


@dataclass(frozen=True)
class HealthResult:
    """The result of one health check."""

    ok: bool
    reason: str = ""  # why it is not ok
    is_draining: bool = False
    models: frozenset[str] = frozenset()  # empty: the response names none
    weights_version: str | None = None


@dataclass(frozen=True)
class VersionRange:
    """The weights versions that a request accepts: exactly one, or at least a number.

    >>> VersionRange.parse(">=7").accepts("12"), VersionRange.parse("7").accepts("12")
    (True, False)
    """

    version: str
    at_least: bool = False

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read the value of a request's header; raise ValueError."""
        at_least = text.startswith(">=")
        version = text[2:].strip() if at_least else text.strip()
        if not version or (at_least and not (version.isascii() and version.isdigit())):
            raise ValueError(f"{text!r} is neither a version nor >= and a number")
        return cls(version, at_least)

    def accepts(self, version: str | None) -> bool:
        if version is None:
            return False
        if self.at_least:
            return version.isascii() and version.isdigit() and int(version) >= int(self.version)
        return version == self.version

    def __str__(self) -> str:
        return f">={self.version}" if self.at_least else self.version


@dataclass(frozen=True)
class ReplicaWish:
    """What a request requires of its replica."""

    model: str | None = None
    versions: VersionRange | None = None
    key: bytes = b""  # requests with the same key go to the same replica as long as the eligible ones stay the same
    replica_id: str | None = None  # of the replica that processed an earlier request


@dataclass
class PoolReplica:
    """One replica, as this proxy knows it."""

    url: str
    state: str = JOINING
    reason: str = ""  # why it is unhealthy
    models: frozenset[str] = frozenset()
    weights_version: str | None = None
    outstanding: int = 0
    requests: int = 0
    failures: int = 0  # requests that were lost with their connection
    _failed_checks: int = field(default=0, repr=False)
    _refused: int = field(default=0, repr=False)

    @property
    def id(self) -> str:
        """A short name that reveals no address, for cookies."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]

    def apply_check(self, result: HealthResult) -> None:
        if self.state == LEAVING:
            return
        if not result.ok and not result.is_draining:
            self._failed_checks += 1
            if self.state != READY or self._failed_checks >= FAILED_CHECKS_MAX:
                self.fail(result.reason)
            return
        self._failed_checks = self._refused = 0
        self.state, self.reason = (DRAINING if result.is_draining else READY), ""
        self.models, self.weights_version = result.models, result.weights_version

    def fail(self, reason: str) -> None:
        if self.state != LEAVING:
            self.state, self.reason = UNHEALTHY, reason

    def apply_status(self, status: int) -> bool:
        """Count a response; return False if the replica has become unhealthy by it."""
        self._refused = self._refused + 1 if status in REFUSING_STATUSES else 0
        if self._refused < REFUSED_RESPONSES_MAX:
            return True
        self.fail(f"{self._refused} consecutive responses had the status {status} or a similar one")
        return False

    def to_json(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "state": self.state,
            "reason": self.reason,
            "models": sorted(self.models),
            "weights_version": self.weights_version,
            "outstanding": self.outstanding,
            "requests": self.requests,
            "failed": self.failures,
        }


class ReplicaPool:
    """The replicas of one endpoint by URL."""

    def __init__(self, first: int = 0) -> None:
        """`first`: where to begin among equally loaded replicas; different on each node, so that they do not meet."""
        self.replicas: dict[str, PoolReplica] = {}
        self._next = first

    @property
    def is_drained(self) -> bool:
        """Whether no request of this proxy is at a replica that is not a member any more."""
        return all(replica.state != LEAVING for replica in self.replicas.values())

    def set_members(self, urls: Iterable[str]) -> list[PoolReplica]:
        """Replace the members; return the new ones, which are joining until their first check."""
        wanted = dict.fromkeys(urls)
        for url, replica in list(self.replicas.items()):
            if url not in wanted:
                replica.state = LEAVING
                self._remove_drained(replica)
        joined = []
        for url in wanted:
            known = self.replicas.get(url)
            if known is None or known.state == LEAVING:
                replica = self.replicas[url] = known or PoolReplica(url)
                replica.state = JOINING
                joined.append(replica)
        return joined

    def choose(self, wish: ReplicaWish) -> PoolReplica | None:
        """Return the replica for a request, None if no replica is eligible."""
        eligible = list(self._eligible(wish))
        if not eligible:
            return None
        for replica in eligible:
            if replica.id == wish.replica_id:
                return replica
        if wish.key:
            return max(eligible, key=lambda replica: _weight(wish.key, replica.url))
        first = self._next % len(eligible)
        self._next += 1
        return min(eligible[first:] + eligible[:first], key=lambda replica: replica.outstanding)

    def _eligible(self, wish: ReplicaWish) -> Iterator[PoolReplica]:
        ready = [replica for replica in self.replicas.values() if replica.state == READY]
        if wish.versions is not None:
            ready = [replica for replica in ready if wish.versions.accepts(replica.weights_version)]
        if wish.model is not None and any(wish.model in replica.models for replica in self.replicas.values()):
            ready = [replica for replica in ready if wish.model in replica.models]
        return iter(ready)  # of a model that no replica names, the server itself reports that it is unknown

    @property
    def names_models(self) -> bool:
        """Whether a health response names models, so that the model of a request matters."""
        return any(replica.models for replica in self.replicas.values())

    def begin(self, replica: PoolReplica) -> None:
        replica.outstanding += 1

    def end(self, replica: PoolReplica) -> None:
        replica.outstanding -= 1
        self._remove_drained(replica)

    def _remove_drained(self, replica: PoolReplica) -> None:
        if replica.state == LEAVING and replica.outstanding == 0:
            self.replicas.pop(replica.url, None)

    def describe(self) -> str:
        """Return the number of replicas by state and version, for errors.

        >>> pool = ReplicaPool()
        >>> pool.set_members(["http://a:1"])[0].apply_check(HealthResult(True, weights_version="3"))
        >>> pool.describe()
        '1 replica ready (version 3)'
        """
        counts: dict[str, int] = {}
        for replica in self.replicas.values():
            version = f" (version {replica.weights_version})" if replica.weights_version is not None else ""
            counts[replica.state + version] = counts.get(replica.state + version, 0) + 1
        named = [f"{count} replica{'s' if count > 1 else ''} {state}" for state, count in sorted(counts.items())]
        return ", ".join(named) or "it has no replicas"


def _weight(key: bytes, url: str) -> bytes:
    """Return the rank of a replica for a key: on all nodes the same, and independent of other replicas."""
    return hashlib.blake2b(url.encode(), key=hashlib.sha256(key).digest(), digest_size=8).digest()
