"""One node as the status and the events show it."""

from __future__ import annotations

from typing import Any

from muster.lifecycle.roles import Node


def node_entry(node: Node) -> dict[str, Any]:
    """`rank` is its number in the allocation, `logical_rank` the one it has in the present cycle."""
    entry = {"rank": node.rank, "host": node.host, "role": node.role.value, "logical_rank": node.logical}
    entry = {**entry, "state": node.state.value, "healthy": node.ailment is None}
    if node.ailment is not None:
        entry["ailment"] = node.ailment
    if node.place.domain:
        entry["domain"] = node.place.domain
    return entry
