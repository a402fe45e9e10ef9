"""Fold lists of host names into a short text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import NodeSet, NodeSetException

from muster.views.sanitize import printable

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def folded(hosts: Iterable[str]) -> str:
    """Return n[1-4] for n1 n2 n3 n4; list names with other characters, which could expand to millions of names."""
    hosts = list(hosts)
    if all(_PLAIN.fullmatch(host) for host in hosts):
        try:
            return str(NodeSet.fromlist(hosts))
        except NodeSetException:
            pass
    return ", ".join(printable(host) for host in hosts)
