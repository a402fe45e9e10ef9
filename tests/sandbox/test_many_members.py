"""A cluster of 10,000 members: real nginx and the Python gateway take the list; a refusal is shown and tried again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.running import wait_for
from tests.sandbox.cluster import Cluster, kinds_here
from tests.sandbox.serving import Served

from muster.sandbox.gateway.nginx_config import find_nginx
from muster.sandbox.gateway.peers import PeerList, PeerListError, parse
from muster.sandbox.hash_ring import Ring

MANY = 10_000
needs_nginx = pytest.mark.skipif(find_nginx() is None, reason="no nginx here")


def declared(count: int) -> list[str]:
    """Endpoints at which nothing listens: connections are refused at once."""
    return [f"http://127.{64 + n // 62_500}.{n // 250 % 250}.{1 + n % 250}:9" for n in range(count)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start a cluster for this test: start(kinds, **settings)."""
    mine: list[Cluster] = []

    def make(*kinds: str, **settings: Any) -> Cluster:
        mine.append(Cluster(tmp_path, kinds, **settings))
        return mine[-1]

    yield make
    for cluster in mine:
        cluster.close()


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
    cluster = start(*kinds_here())
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


def test_more_members_than_the_limit_are_refused_and_10_000_are_not() -> None:
    assert len(parse({"endpoints": declared(MANY)}).endpoints) == MANY
    with pytest.raises(PeerListError, match="are more than"):
        parse({"endpoints": declared(20_000)})


def test_the_ring_of_10_000_members_gives_every_key_an_owner() -> None:
    ring = Ring(declared(MANY))
    owners = {ring.owner(f"session-{number}".encode()) for number in range(20_000)}
    assert len(owners) > MANY * 0.7 and PeerList(1, tuple(declared(MANY))).endpoints


# -- a list that nginx does not take --------------------------------------------------------------------------------


@pytest.fixture
def moody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an nginx in front of the real one that refuses configurations as long as the returned file exists."""
    directory, flag = tmp_path / "bin", tmp_path / "refuse"
    directory.mkdir()
    script = directory / "nginx"
    script.write_text(
        f"#!/bin/sh\n[ -e {flag} ] && {{ echo 'too long parameter, probably missing' >&2; exit 1; }}\n"
        f'exec {find_nginx()} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return flag


def gateway_of(node: Served) -> dict[str, Any]:
    found: dict[str, Any] = node.ask("GET", "/health")["gateway"]
    return found


@needs_nginx
def test_members_that_nginx_refuses_are_served_without_it_the_reason_is_shown_and_it_is_tried_again(
    start: Callable[..., Cluster], moody: Path
) -> None:
    cluster = start("nginx", "nginx")
    node = cluster.nodes[0]
    moody.touch()
    cluster.tell([*cluster.endpoints, "http://127.0.0.9:9"])
    found = gateway_of(node)
    assert (found["kind"], found["version"], found["members"]) == ("python", 2, 3)
    assert "nginx refuses its configuration" in found["problem"] and "too long parameter" in found["problem"]
    assert "muster_sandbox_gateway_degraded 1" in node.ask("GET", "/metrics")["text"]
    assert node.ask("GET", "/gateway")["problem"] == node.ask("GET", "/load")["gateway_problem"] == found["problem"]
    names = sessions_of([*cluster.endpoints, "http://127.0.0.9:9"], cluster.endpoints)
    for owner, name in names.items():  # both nodes serve all members, without nginx
        assert {one.cell("1", name).headers["X-Muster-Member"] for one in cluster.nodes} == {owner[len("http://") :]}
    said = node.said().count("too long parameter")
    cluster.tell(cluster.endpoints)  # still refused; the newest list is served all the same
    assert gateway_of(node)["version"] == 3 and node.said().count("too long parameter") == said == 1
    moody.unlink()
    wait_for("nginx to serve again", lambda: gateway_of(node)["problem"] is None, 90)
    assert gateway_of(node) == {"kind": "nginx", "version": 3, "members": 2, "problem": None}
    assert "muster_sandbox_gateway_degraded 0" in node.ask("GET", "/metrics")["text"]
    assert node.out("print(1)") == "1\n"


@needs_nginx
def test_what_is_being_answered_when_nginx_refuses_members_is_answered_to_its_end(
    start: Callable[..., Cluster], moody: Path
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    cluster = start("nginx")
    node = cluster.nodes[0]
    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(node.execute, "import time; time.sleep(6); print('done')", timeout=60)
        wait_for("it to run", lambda: node.ask("GET", "/load")["running"] == 1)
        moody.touch()
        cluster.tell([*cluster.endpoints, "http://127.0.0.9:9"])
        assert gateway_of(node)["kind"] == "python"
        assert sleeper.result()["stdout"] == "done\n"


def test_a_members_file_that_is_refused_is_shown_until_it_is_replaced(start: Callable[..., Cluster]) -> None:
    cluster = start("python")
    cluster.write('{"version": 9, "endpoints": ["http://n1:80"]}')
    wait_for("the refusal", lambda: gateway_of(cluster.nodes[0])["problem"])
    found = gateway_of(cluster.nodes[0])
    assert found["version"] == 1 and "endpoint 'http://n1:80' is not http://ADDRESS:PORT" in found["problem"]
    cluster.tell(cluster.endpoints)
    assert gateway_of(cluster.nodes[0])["problem"] is None
