"""Which of several endpoints a session belongs to: the same one for everybody who has the same list, in any order.

Rendezvous hashing: when an endpoint is lost, only its own sessions move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def ranked(key: str, endpoints: Sequence[str]) -> list[str]:
    """The endpoints in the order in which this key prefers them.

    >>> ranked("alice", ["http://b", "http://a"]) == ranked("alice", ["http://a", "http://b"])
    True
    """
    return sorted(endpoints, key=lambda endpoint: hashlib.sha256(f"{key}\0{endpoint}".encode()).digest())
