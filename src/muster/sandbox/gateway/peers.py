"""The sandboxes of a cluster: a small file on each node, rewritten by rename whenever one comes or goes.

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

LOOK_S = 0.3
# Of members. Each takes at most 58 bytes of JSON, so that the longest list fits into 1 MB: a line of the agents'
# control channel, and an answer to one of their probes.
MOST = 16_384
_ENDPOINT = re.compile(r"http://(?:\[([0-9A-Fa-f:]+)\]|([0-9.]+)):([0-9]{1,5})/?")


class PeerListError(ValueError):
    """A file of members that cannot be used."""


@dataclass(frozen=True)
class PeerList:
    """`endpoints` are sorted, so that everybody makes the same of them."""

    version: int = 0
    endpoints: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """ADDRESS:PORT of each."""
        return tuple(address_of(endpoint) for endpoint in self.endpoints)

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "endpoints": list(self.endpoints)}


def address_of(endpoint: str) -> str:
    return endpoint[len("http://") :]


def parse(data: Any) -> PeerList:
    """The members, or MembersError. Endpoints go into nginx's configuration: nothing but http://ADDRESS:PORT does."""
    if not isinstance(data, dict) or not isinstance(data.get("endpoints"), list):
        raise PeerListError('it must be {"version": NUMBER, "endpoints": ["http://ADDRESS:PORT", ...]}')
    version = data.get("version", 0)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise PeerListError(f"version is {version!r}: it must be a number from 0 on")
    if len(data["endpoints"]) > MOST:
        raise PeerListError(f"{len(data['endpoints'])} endpoints are more than {MOST}")
    return PeerList(version, tuple(sorted({_endpoint(one) for one in data["endpoints"]})))


def _endpoint(text: Any) -> str:
    matched = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
    if matched is None:
        raise PeerListError(f"endpoint {text!r} is not http://ADDRESS:PORT")
    six, four, port = matched.groups()
    try:
        address = ipaddress.ip_address(six or four)
    except ValueError:
        raise PeerListError(f"endpoint {text!r} has no address") from None
    if not 0 < int(port) < 65536 or address.is_unspecified:
        raise PeerListError(f"endpoint {text!r} cannot be connected to")
    return f"http://[{address}]:{int(port)}" if six else f"http://{address}:{int(port)}"


def read(path: str) -> PeerList:
    """Raises MembersError, with the path, when it is no list of members, and OSError when it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(json.load(file))
    except (ValueError, RecursionError) as error:  # MembersError is a ValueError, and so is what json raises
        raise PeerListError(f"{path}: {error}") from None


class PeerWatch:
    """Looks at the file; tells `changed` of new members, and `refused` why a file cannot be used, once for each reason.

    `problem` is that reason as long as the file is there and cannot be used.
    """

    def __init__(self, path: str, changed: Callable[[PeerList], Any], refused: Callable[[str], None]) -> None:
        self._path, self._changed, self._refused = path, changed, refused
        self._seen: tuple[int, ...] | None = None
        self.members = PeerList()
        self.problem: str | None = None

    async def look(self) -> None:
        """One look."""
        mark = self._mark()
        if mark == self._seen or mark is None:  # a file that is taken away changes nothing
            return
        try:
            found = read(self._path)
        except FileNotFoundError:
            return
        except PeerListError as error:
            self._seen = mark
            self._refuse(str(error))
            return
        except OSError as error:  # it may pass: looked at again the next time
            self._refuse(f"{self._path}: {error.strerror}")
            return
        if found != self.members:
            await self._changed(found)
        self._seen, self.members, self.problem = mark, found, None

    def _refuse(self, words: str) -> None:
        if words != self.problem:
            self.problem = words
            self._refused(words)

    def _mark(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    async def forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception as error:  # a defect must not leave this node with old members for good
                self._refuse(f"{self._path}: {error!r}")
