"""How things are called inside Ray, so that whose they are can be read from the name. Pure.

    <server>/<term>/<replica>            a placement group
    <server>/<term>/<replica>.<rank>     the actor of one of its programs, in the namespace below

A term is one owner's time with the server's name (lease.py). Names are taken apart, never compared by their beginning:
server `a` has nothing to do with server `a_b`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NAMESPACE = "muster"
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_NAME = re.compile(rf"({_SERVER.pattern})/(\d+)/(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Name:
    """A group's, or with a rank an actor's."""

    server: str
    term: int
    replica: int
    rank: int | None = None

    def __str__(self) -> str:
        base = f"{self.server}/{self.term}/{self.replica}"
        return base if self.rank is None else f"{base}.{self.rank}"


def parsed(text: str) -> Name | None:
    """None for what is not named by us.

    >>> parsed("chat/2/0.1")
    Name(server='chat', term=2, replica=0, rank=1)
    """
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    server, term, replica, rank = match.groups()
    return Name(server, int(term), int(replica), None if rank is None else int(rank))


def checked_server(name: str) -> str:
    if not _SERVER.fullmatch(name):
        raise ValueError(f"a server's name is letters, digits, `_`, `.` and `-`, at most 63 of them, not {name!r}")
    return name
