"""Addresses that a peer may reach: their order, and the choice by --interface."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from muster.agent.net.addresses import NoAddress, address_towards, choose_addresses, host_addresses, own_address
from muster.agent.net.netlink import Interface

HOST = [
    Interface("lo", True, ("127.0.0.1/8", "127.0.1.1/8", "::1/128")),
    Interface("docker0", True, ("172.17.0.1/16",)),
    Interface("idrac", False, ("10.9.0.7/24",)),
    Interface("eth0", True, ("192.168.1.7/24", "192.168.1.8/24", "fe80::7/64", "2001:db8::7/64")),
    Interface("ib0", True, ("10.1.0.7/16", "169.254.3.4/16")),
    Interface("ib1", True, ()),
]


def chosen(wanted: str | None) -> list[str]:
    return [str(address.ip) for address in choose_addresses(HOST, wanted)]


# -- of any host ------------------------------------------------------------------------------------------------


def test_loopback_and_link_local_are_left_out_and_unreachable_ones_come_last() -> None:
    connected = ["192.168.1.7", "192.168.1.8", "10.1.0.7", "2001:db8::7"]
    assert chosen(None) == [*connected, "10.9.0.7", "172.17.0.1"]


@pytest.mark.parametrize(
    ("wanted", "matching"),
    [
        ("ib0", ["10.1.0.7"]),
        ("ib*", ["10.1.0.7"]),
        ("eth0", ["192.168.1.7", "192.168.1.8", "2001:db8::7"]),
        ("10.1.0.0/16", ["10.1.0.7"]),
        ("10.1.255.1/16", ["10.1.0.7"]),
        ("2001:db8::/32", ["2001:db8::7"]),
        ("10.1.44.5", ["10.1.0.7"]),  # another node's address: ours in the same network
        ("ib0, eth0", ["10.1.0.7", "192.168.1.7", "192.168.1.8", "2001:db8::7"]),
        ("ib7,10.1.0.0/16,ib0", ["10.1.0.7"]),
    ],
)
def test_an_interface_is_chosen_by_name_pattern_network_or_address(wanted: str, matching: list[str]) -> None:
    assert chosen(wanted) == matching


@pytest.mark.parametrize("wanted", ["eth9", "ib1", "lo", "10.2.0.0/16", "10.2.0.1", "docker"])
def test_an_interface_without_a_matching_address_is_refused_with_the_existing_ones(wanted: str) -> None:
    with pytest.raises(NoAddress) as refused:
        choose_addresses(HOST, wanted)
    assert f"--interface {wanted} matches no address of this host" in str(refused.value)
    assert "eth0 (192.168.1.7, 192.168.1.8, 2001:db8::7), ib0 (10.1.0.7), ib1 (without address)" in str(refused.value)


def node(monkeypatch: pytest.MonkeyPatch, host: list[Interface] = HOST) -> None:
    monkeypatch.setattr("muster.agent.net.addresses.interfaces", lambda: host)


def test_a_node_s_address_is_that_of_its_connection_to_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    node(monkeypatch)
    assert own_address(None, "192.168.1.8") == "192.168.1.8"
    assert own_address("eth0", "192.168.1.8") == "192.168.1.8"


def test_an_interface_given_wins_over_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    node(monkeypatch)
    assert own_address("ib0", "192.168.1.8") == "10.1.0.7"


def test_a_temporary_address_of_the_connection_gives_way_to_the_permanent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    node(monkeypatch)
    assert own_address(None, "2001:db8::dead:beef") == "2001:db8::7"
    assert own_address(None, "203.0.113.9") == "203.0.113.9"  # one the kernel does not list, but it works


# -- of this host -----------------------------------------------------------------------------------------------


def test_every_offered_address_can_be_bound_and_is_neither_loopback_nor_link_local() -> None:
    for address in host_addresses(None):
        parsed = ipaddress.ip_address(address)
        assert not parsed.is_loopback and not parsed.is_link_local
        with socket.socket(socket.AF_INET if parsed.version == 4 else socket.AF_INET6) as probe:
            probe.bind((address, 0))


def test_the_address_by_which_this_host_reaches_others_is_offered_first_if_preferred() -> None:
    towards = address_towards("192.0.2.1")
    if towards is None:
        pytest.skip("no route out of this host")
    assert host_addresses(None, towards)[0] == towards
    assert address_towards("not an address") is None
