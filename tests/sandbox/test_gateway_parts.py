"""What a gateway is made of: members, the ring, the routing key; pure."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from muster.sandbox.gateway import peers
from muster.sandbox.gateway.balancer import routing_key
from muster.sandbox.gateway.peers import PeerList, PeerListError, parse, reachable_address
from muster.sandbox.hash_ring import Ring, points_of
from muster.sandbox.settings import SandboxSettings, SettingsError


def test_members_are_sorted_and_each_is_there_once() -> None:
    found = parse({"version": 3, "endpoints": ["http://10.0.0.9:1", "http://10.0.0.1:1/", "http://10.0.0.9:01"]})
    assert found == PeerList(3, ("http://10.0.0.1:1", "http://10.0.0.9:1"))
    assert parse({"endpoints": ["http://[FD00::3]:7001"]}).endpoints == ("http://[fd00::3]:7001",)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://10.0.0.1:7001; } server { listen 80",
        "http://10.0.0.1:7001\n",
        "http://10.0.0.1:7001 backup",
        "http://10.0.0.1:$port",
        "http://user@10.0.0.1:80",
        "https://10.0.0.1:80",
        "http://10.0.0.1",
        "http://n1:7001",
        "http://10.0.0.1:0",
        "http://10.0.0.1:65536",
        "http://10.0.0.1:80/path",
        "http://0.0.0.0:80",
        "unix:/tmp/x",
        "http://[fd00::3%25eth0]:80",
        "http://[]:80",
        "http://1.2.3:80",
        "http://10.0.0.1:٣",
        "",
        7,
        None,
    ],
)
def test_nothing_but_an_address_and_a_port_is_a_member(endpoint: object) -> None:
    with pytest.raises(PeerListError, match="endpoint "):
        parse({"version": 1, "endpoints": ["http://10.0.0.1:7001", endpoint]})


@pytest.mark.parametrize("data", [[], {}, {"endpoints": "x"}, {"version": "1", "endpoints": []}, {"version": -1}, None])
def test_other_files_are_no_members(data: object, tmp_path: Path) -> None:
    (tmp_path / "members").write_text(json.dumps(data))
    with pytest.raises(PeerListError, match=r"members: (it must be|version is)"):
        peers.read(str(tmp_path / "members"))


def test_the_points_of_an_endpoint_never_change() -> None:
    """Clients and gateways of other versions must agree on the node of a session."""
    assert points_of("10.0.0.1:7001")[:2] == [4193903614, 905706719]
    assert len(set(points_of("10.0.0.1:7001"))) == 160


def test_a_member_that_comes_or_goes_moves_no_sessions_but_its_own() -> None:
    endpoints = [f"http://10.0.0.{number}:7001" for number in range(1, 9)]
    all_, fewer = Ring(endpoints), Ring(endpoints[:-1])
    keys = [f"session-{number}".encode() for number in range(4000)]
    assert all(all_.owner(key) == fewer.owner(key) for key in keys if all_.owner(key) != endpoints[-1])
    counts = Counter(all_.owner(key) for key in keys)
    assert min(counts.values()) > 250 and max(counts.values()) < 750
    assert [all_.order(key)[0] for key in keys[:50]] == [all_.owner(key) for key in keys[:50]]
    assert all(sorted(all_.order(key)) == sorted(endpoints) for key in keys[:50])


def test_what_a_request_is_kept_together_by() -> None:
    assert routing_key("/execute", {}) == b""
    assert routing_key("/execute", {"x-session-id": "a", "x-workspace-id": "b"}) == b"a"
    assert routing_key("/execute", {"x-workspace-id": "b"}) == b"b"
    assert routing_key("/sessions/a%20b", {"x-session-id": "c"}) == b"a b"
    assert routing_key("/sessions/", {}) == b"" and routing_key("/workspaces/w", {}) == b"w"


def test_where_a_server_is_reached_from_its_own_node() -> None:
    assert reachable_address("0.0.0.0", 7) == "127.0.0.1:7" and reachable_address("::", 7) == "[::1]:7"
    assert reachable_address("10.0.0.1", 7) == "10.0.0.1:7"


def test_settings_of_a_cluster_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingsError, match="members_file needs listen"):
        SandboxSettings(members_file="/m")
    with pytest.raises(SettingsError, match="token: only letters, digits"):
        SandboxSettings(listen="127.0.0.1:1", token='t"; evil')
    with pytest.raises(SettingsError, match="gateway is 'caddy'"):
        SandboxSettings(gateway="caddy")
    assert not SandboxSettings(members_file="/m", single_node=True).is_clustered
