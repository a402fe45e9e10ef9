"""The names of groups and actors in Ray, which show to which server they belong. Pure.

    <server>/<term>/<replica>            a placement group
    <server>/<term>/<replica>.<rank>     the actor of one of its programs, in NAMESPACE

A term is the time during which one owner holds the server's name (lease.py). Names are parsed, never compared by
prefix: server `a` is unrelated to server `a_b`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NAMESPACE = "muster"
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_NAME = re.compile(rf"({_SERVER.pattern})/(\d+)/(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Name:
    """The name of a group, or with a rank that of an actor."""

    server: str
    term: int
    replica: int
    rank: int | None = None

    def __str__(self) -> str:
        base = f"{self.server}/{self.term}/{self.replica}"
        return base if self.rank is None else f"{base}.{self.rank}"


def parse_name(text: str) -> Name | None:
    """Parse a name; None if it is not one of ours.

    >>> parse_name("chat/2/0.1")
    Name(server='chat', term=2, replica=0, rank=1)
    """
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    server, term, replica, rank = match.groups()
    return Name(server, int(term), int(replica), None if rank is None else int(rank))


def validate_server(name: str) -> str:
    if not _SERVER.fullmatch(name):
        raise ValueError(f"a server's name is at most 63 letters, digits, `_`, `.` and `-`, not {name!r}")
    return name
