"""The members of a sandbox as the leader sends them: all at first, later what has changed. Pure.

Ten thousand endpoints take 0.3 MB, and each of ten thousand nodes gets them. So a long list is compressed, and a node
that has the version before gets only the endpoints that were added or removed since.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.agent.control.messages import ServiceMembers

NO_MEMBERS = 0  # the version of a node that has no list
PACKED_FROM = 64  # endpoints; fewer are sent as they are
UNPACKED_MAX_BYTES = 4 << 20  # far more than the longest list that a sandbox accepts


@dataclass(frozen=True)
class MemberList:
    """One version of the members."""

    version: int
    endpoints: frozenset[str]

    def complete(self, service: str, cycle: int) -> ServiceMembers:
        """Return the message for a node that has no list."""
        added, packed = _packed(self.endpoints)
        return ServiceMembers(service, self.version, None, added, (), packed, cycle)

    def since(self, before: MemberList, service: str, cycle: int) -> ServiceMembers:
        """Return the message for a node that has the list `before`; the complete list if that is shorter."""
        added, removed = self.endpoints - before.endpoints, before.endpoints - self.endpoints
        if len(added) + len(removed) >= len(self.endpoints):
            return self.complete(service, cycle)
        short, packed = _packed(added)
        return ServiceMembers(service, self.version, before.version, short, tuple(sorted(removed)), packed, cycle)


def updated(known: MemberList | None, message: ServiceMembers) -> MemberList | None:
    """Return the list after a message; None if it changes a list that this node does not have."""
    added = frozenset(message.added).union(_unpacked(message.packed))
    if message.base is None:
        return MemberList(message.version, added)
    if known is None or known.version != message.base:
        return None
    return MemberList(message.version, known.endpoints.difference(message.removed) | added)


def _packed(endpoints: Iterable[str]) -> tuple[tuple[str, ...], str | None]:
    """Return the endpoints, or none of them and a text that contains them."""
    ordered = tuple(sorted(endpoints))
    if len(ordered) < PACKED_FROM:
        return ordered, None
    return (), base64.b64encode(zlib.compress("\n".join(ordered).encode())).decode()


def _unpacked(text: str | None) -> Sequence[str]:
    if text is None:
        return ()
    return zlib.decompressobj().decompress(base64.b64decode(text), UNPACKED_MAX_BYTES).decode().split("\n")
