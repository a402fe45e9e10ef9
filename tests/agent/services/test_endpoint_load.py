"""The sum of the loads of an endpoint's proxies."""

from __future__ import annotations

from typing import Any

from muster.agent.services.endpoint_load import sum_loads
from muster.endpoint.pool import HealthResult, ReplicaPool


def reported(version: str, *urls: str) -> dict[str, Any]:
    """Return a load with replicas in the form in which the proxy reports them."""
    pool = ReplicaPool()
    for replica in pool.set_members(urls):
        replica.apply_check(HealthResult(True, models=frozenset({"m"}), weights_version=version))
        replica.requests = 3
    replicas = [replica.to_json() for replica in pool.replicas.values()]
    return {"outstanding": 1, "waiting": 2, "requests": 3 * len(urls), "failed": 0, "replicas": replicas}


def test_totals_and_replicas_are_added_up() -> None:
    loads = [reported("7", "http://a:1", "http://b:1"), reported("8", "http://b:1")]
    found = sum_loads(loads)
    assert {name: found[name] for name in ("outstanding", "waiting", "requests", "failed")} == {
        "outstanding": 2,
        "waiting": 4,
        "requests": 9,
        "failed": 0,
    }
    first, second = found["replicas"]
    assert (first["url"], first["proxies"], first["requests"]) == ("http://a:1", 1, 3)
    assert (second["proxies"], second["ready"], second["requests"]) == (2, 2, 6)
    assert (second["states"], second["weights_versions"], second["models"]) == (["ready"], ["7", "8"], ["m"])


def test_without_reports_nothing_is_known() -> None:
    assert sum_loads([]) == {"outstanding": 0, "waiting": 0, "requests": 0, "failed": 0, "replicas": []}
