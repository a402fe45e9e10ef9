"""One node as the status and the events show it."""

from __future__ import annotations

from typing import Any

from muster.lifecycle.roles import RunNode


def node_entry(node: RunNode) -> dict[str, Any]:
    """`rank` is its number in the allocation, `logical_rank` the one it has in the present cycle."""
    entry = {"rank": node.rank, "host": node.host, "role": node.role.value, "logical_rank": node.logical}
    entry = {**entry, "state": node.state.value, "healthy": node.unhealthy_reason is None}
    if node.unhealthy_reason is not None:
        entry["ailment"] = node.unhealthy_reason
    if node.place.domain:
        entry["domain"] = node.place.domain
    return entry
