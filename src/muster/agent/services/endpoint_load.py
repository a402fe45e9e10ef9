"""The load of an endpoint in the status: the sum of what the proxies of all nodes report. Pure.

The leader adds it up, since a status with each replica of each proxy would grow with nodes times replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TOTALS = ("outstanding", "waiting", "requests", "failed")
REPLICA_TOTALS = ("outstanding", "requests", "failed")


def sum_loads(loads: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals, and for each replica its totals, and how many of the proxies that know it find it ready."""
    totals = dict.fromkeys(TOTALS, 0)
    replicas: dict[str, dict[str, Any]] = {}
    for load in loads:
        for name in TOTALS:
            totals[name] += load[name]
        for one in load["replicas"]:
            _add(replicas.setdefault(one["url"], _empty(one["url"])), one)
    return {**totals, "replicas": [replicas[url] for url in sorted(replicas)]}


def _empty(url: str) -> dict[str, Any]:
    known = {"url": url, "proxies": 0, "ready": 0, "states": [], "weights_versions": [], "models": []}
    return {**known, **dict.fromkeys(REPLICA_TOTALS, 0)}


def _add(replica: dict[str, Any], one: Mapping[str, Any]) -> None:
    replica["proxies"] += 1
    replica["ready"] += one["state"] == "ready"
    for name in REPLICA_TOTALS:
        replica[name] += one[name]
    versions = [one["weights_version"]] if one["weights_version"] is not None else []
    for name, values in (("states", [one["state"]]), ("weights_versions", versions), ("models", one["models"])):
        replica[name] += [value for value in values if value not in replica[name]]
