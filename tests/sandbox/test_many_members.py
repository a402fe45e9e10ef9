"""A cluster of 10,000 members, and a list of members that is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.running import wait_for
from tests.sandbox.cluster import MANY, Cluster, declared
from tests.sandbox.serving import Served

from muster.sandbox.hash_ring import Ring


def sessions_of(endpoints: list[str], owners: list[str]) -> dict[str, str]:
    """Find a session name for each of the owners, by the ring over all endpoints."""
    ring, found, number = Ring(endpoints), dict[str, str](), 0
    while len(found) < len(owners):
        number += 1
        owner = ring.owner(f"s{number}".encode())
        if owner in owners:
            found.setdefault(owner, f"s{number}")
    return found


def resident_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmRSS"))


def test_a_few_live_nodes_among_10_000_members_serve_each_other(start: Callable[..., Cluster]) -> None:
    cluster = start(2)
    live = cluster.endpoints
    cluster.tell([*declared(MANY - len(live)), *live])
    names = sessions_of(sorted([*declared(MANY - len(live)), *live]), live)
    for number, node in enumerate(cluster.nodes):
        gateway = node.ask("GET", "/gateway")
        assert (gateway["gateway"], len(gateway["endpoints"])) == (node.facts["gateway"], MANY)
        assert node.ask("GET", "/health")["gateway"] == {
            "kind": node.facts["gateway"],
            "version": 2,
            "members": MANY,
            "problem": None,
        }
        assert node.out("print(1)") == "1\n"
        for owner, name in names.items():
            answer = node.cell("n = n + 1 if 'n' in dir() else 0\nn", name)
            assert (answer["stdout"], f"http://{answer.headers['X-Muster-Member']}") == (f"{number}\n", owner)
        assert resident_mb(node.process.pid) < 400


def gateway_of(node: Served) -> dict[str, Any]:
    found: dict[str, Any] = node.ask("GET", "/health")["gateway"]
    return found


def test_a_members_file_that_is_refused_is_shown_until_it_is_replaced(start: Callable[..., Cluster]) -> None:
    cluster = start()
    cluster.write('{"version": 9, "endpoints": ["http://n1:80"]}')
    wait_for("the refusal", lambda: gateway_of(cluster.nodes[0])["problem"])
    found = gateway_of(cluster.nodes[0])
    assert found["version"] == 1 and "endpoint 'http://n1:80' is not http://ADDRESS:PORT" in found["problem"]
    assert "muster_sandbox_gateway_degraded 1" in cluster.nodes[0].ask("GET", "/metrics")["text"]
    for path, name in (("/gateway", "problem"), ("/load", "gateway_problem")):
        assert cluster.nodes[0].ask("GET", path)[name] == found["problem"]
    cluster.tell(cluster.endpoints)
    assert gateway_of(cluster.nodes[0])["problem"] is None
    assert "muster_sandbox_gateway_degraded 0" in cluster.nodes[0].ask("GET", "/metrics")["text"]
