"""What a gateway is made of: members, the ring, nginx's configuration; pure."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from muster.sandbox.gateway import nginx_config, peers
from muster.sandbox.gateway.balancer import key_of
from muster.sandbox.gateway.peers import PeerList, PeerListError, parse
from muster.sandbox.hash_ring import Ring, points_of
from muster.sandbox.settings import SandboxSettings, SettingsError

GOLDEN = Path(__file__).parent / "golden"
PLAN = nginx_config.GatewayPlan("127.0.0.1:6000", "10.0.0.2:7001", "t0p", "/place", 3600.0)
THREE = PeerList(7, ("http://10.0.0.1:7001", "http://10.0.0.2:7001", "http://[fd00::3]:7001"))


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("alone.conf", PLAN),
        ("three.conf", nginx_config.GatewayPlan("127.0.0.1:6000", "10.0.0.2:7001", "t0p", "/place", 3600.0, THREE)),
        (
            "shared.conf",
            nginx_config.GatewayPlan(
                "[::1]:6000", "[::1]:7001", "t0p", "/p", 10.5, THREE, True, "root root", connections=960
            ),
        ),
    ],
)
def test_the_configuration(name: str, plan: nginx_config.GatewayPlan) -> None:
    path = GOLDEN / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(nginx_config.render(plan))
        pytest.fail(f"{path} was made: look at it")
    assert nginx_config.render(plan) == path.read_text()


def test_members_are_sorted_and_each_is_there_once() -> None:
    found = parse({"version": 3, "endpoints": ["http://10.0.0.9:1", "http://10.0.0.1:1/", "http://10.0.0.9:01"]})
    assert found == PeerList(3, ("http://10.0.0.1:1", "http://10.0.0.9:1"))
    assert parse({"endpoints": ["http://[FD00::3]:7001"]}).addresses == ("[fd00::3]:7001",)


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


def test_the_ring_is_the_ketama_of_nginx() -> None:
    """Checksums as ngx_http_upstream_hash_module.c chains them; a real nginx is compared with in test_gateway.py."""
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
    assert key_of("/execute", {}) == b""
    assert key_of("/execute", {"x-session-id": "a", "x-workspace-id": "b"}) == b"a"
    assert key_of("/execute", {"x-workspace-id": "b"}) == b"b"
    assert key_of("/sessions/a%20b", {"x-session-id": "c"}) == b"a b"
    assert key_of("/sessions/", {}) == b"" and key_of("/workspaces/w", {}) == b"w"


def test_where_a_server_is_reached_from_its_own_node() -> None:
    assert nginx_config.own_address("0.0.0.0", 7) == "127.0.0.1:7" and nginx_config.own_address("::", 7) == "[::1]:7"
    assert nginx_config.own_address("10.0.0.1", 7) == "10.0.0.1:7"


def test_settings_of_a_cluster_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingsError, match="members_file needs listen"):
        SandboxSettings(members_file="/m")
    with pytest.raises(SettingsError, match="token: letters, digits"):
        SandboxSettings(listen="127.0.0.1:1", token='t"; evil')
    with pytest.raises(SettingsError, match="gateway is 'caddy'"):
        SandboxSettings(gateway="caddy")
    assert not SandboxSettings(members_file="/m", single_node=True).is_clustered
