"""The members of a sandbox cluster: a small file on each node, replaced by rename when a sandbox joins or leaves.

{"version": 3, "endpoints": ["http://10.0.0.1:7001", "http://10.0.0.2:7001"]}
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Callable

MEMBERS_POLL_S = 0.3
# Each member takes at most 58 bytes of JSON, so that the longest list fits into 1 MB: the limit of a line of the
# agents' control channel, and of a response to one of their probes.
MEMBERS_MAX = 16_384
_ENDPOINT = re.compile(r"http://(?:\[([0-9A-Fa-f:]+)\]|([0-9.]+)):([0-9]{1,5})/?")


class PeerListError(ValueError):
    """A file of members that cannot be used."""


@dataclass(frozen=True)
class PeerList:
    """`endpoints` are sorted, so that all nodes compute the same hash ring."""

    version: int = 0
    endpoints: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "endpoints": list(self.endpoints)}


def address_of(endpoint: str) -> str:
    """Return ADDRESS:PORT of http://ADDRESS:PORT."""
    return endpoint[len("http://") :]


def reachable_address(host: str, port: int) -> str:
    """Return ADDRESS:PORT at which a server that listens on `host` is reached from its own node."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(data: Any) -> PeerList:
    """Return the members; raise PeerListError unless every endpoint is http://ADDRESS:PORT."""
    if not isinstance(data, dict) or not isinstance(data.get("endpoints"), list):
        raise PeerListError('it must be {"version": NUMBER, "endpoints": ["http://ADDRESS:PORT", ...]}')
    version = data.get("version", 0)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise PeerListError(f"version is {version!r}: it must be a number from 0 on")
    if len(data["endpoints"]) > MEMBERS_MAX:
        raise PeerListError(f"{len(data['endpoints'])} endpoints are more than {MEMBERS_MAX}")
    return PeerList(version, tuple(sorted({_endpoint(one) for one in data["endpoints"]})))


def _endpoint(text: Any) -> str:
    matched = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
    if matched is None:
        raise PeerListError(f"endpoint {text!r} is not http://ADDRESS:PORT")
    six, four, port = matched.groups()
    try:
        address = ipaddress.ip_address(six or four)
    except ValueError:
        raise PeerListError(f"endpoint {text!r} has no valid address") from None
    if not 0 < int(port) < 65536 or address.is_unspecified:
        raise PeerListError(f"endpoint {text!r} cannot be connected to")
    return f"http://[{address}]:{int(port)}" if six else f"http://{address}:{int(port)}"


def read(path: str) -> PeerList:
    """Read a file of members; raise PeerListError, with the path, or OSError."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(json.load(file))
    except (ValueError, RecursionError) as error:  # PeerListError is a ValueError, as are errors of json
        raise PeerListError(f"{path}: {error}") from None


class PeerWatch:
    """Polls the file, and calls `changed` with new members, or `rejected` with each new reason not to use it.

    `problem` is that reason as long as the file exists and cannot be used.
    """

    def __init__(self, path: str, changed: Callable[[PeerList], Any], rejected: Callable[[str], None]) -> None:
        self._path, self._changed, self._rejected = path, changed, rejected
        self._seen: tuple[int, ...] | None = None
        self.members = PeerList()
        self.problem: str | None = None

    async def poll(self) -> None:
        identity = self._identity()
        if identity == self._seen or identity is None:  # removing the file changes nothing
            return
        try:
            found = read(self._path)
        except FileNotFoundError:
            return
        except PeerListError as error:
            self._seen = identity
            self._reject(str(error))
            return
        except OSError as error:  # it may be temporary: the next poll reads again
            self._reject(f"{self._path}: {error.strerror}")
            return
        if found != self.members:
            await self._changed(found)
        self._seen, self.members, self.problem = identity, found, None

    def _reject(self, reason: str) -> None:
        if reason != self.problem:
            self.problem = reason
            self._rejected(reason)

    def _identity(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    async def poll_forever(self) -> None:
        while True:
            await asyncio.sleep(MEMBERS_POLL_S)
            try:
                await self.poll()
            except Exception as error:  # a defect must not stop the polling for good
                self._reject(f"{self._path}: {error!r}")
