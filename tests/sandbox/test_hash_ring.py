"""The hash ring: every key has an owner, and a lost endpoint moves only its own keys."""

from __future__ import annotations

from collections import Counter

from tests.sandbox.cluster import MANY, declared

from muster.sandbox.gateway.peers import PeerList
from muster.sandbox.hash_ring import Ring, points_of, ranked


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


def test_the_ring_of_10_000_members_gives_every_key_an_owner() -> None:
    ring = Ring(declared(MANY))
    owners = {ring.owner(f"session-{number}".encode()) for number in range(20_000)}
    assert len(owners) > MANY * 0.7 and PeerList(1, tuple(declared(MANY))).endpoints


def test_losing_an_endpoint_moves_its_own_sessions_alone() -> None:
    urls = [f"http://n{number}" for number in range(8)]
    names = [f"s{number}" for number in range(400)]
    before = {name: ranked(name, urls)[0] for name in names}
    after = {name: ranked(name, urls[:-1])[0] for name in names}
    assert all(before[name] == after[name] for name in names if before[name] != urls[-1])
    counts = [list(before.values()).count(one) for one in urls]
    assert min(counts) > 20


def test_a_key_prefers_every_endpoint_once_and_in_the_same_order_for_any_list() -> None:
    endpoints = [f"http://n{number}:1" for number in range(5)]
    for key in ("a", "b", "grüße"):
        order = ranked(key, endpoints)
        assert sorted(order) == endpoints and order == ranked(key, endpoints[::-1] + endpoints[:2])
        assert Ring(endpoints).owner(key.encode()) == order[0]
        assert ranked(key, order[1:]) == order[1:]  # who is lost leaves its keys to the next


def test_an_address_without_a_port_has_points_of_its_own() -> None:
    assert points_of("n1") != points_of("n1:1") and points_of("n1:1") != points_of("n1:2")
    assert all(0 <= point < 2**32 for point in points_of("[fd00::1]:7"))


def test_a_ring_without_endpoints_has_no_order() -> None:
    assert Ring([]).order(b"key") == []
