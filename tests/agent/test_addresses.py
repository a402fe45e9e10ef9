"""Which addresses of a host are offered to others."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import pytest

from muster.agent import addresses
from muster.agent.addresses import host_addresses


def test_every_address_offered_can_be_bound_here_and_could_be_reached_from_elsewhere() -> None:
    for address in host_addresses():
        parsed = ipaddress.ip_address(address)
        assert not parsed.is_loopback and not parsed.is_link_local
        with socket.socket(socket.AF_INET if parsed.version == 4 else socket.AF_INET6) as probe:
            probe.bind((address, 0))


def test_the_address_by_which_this_host_reaches_others_is_offered() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; asks for the route
        except OSError:
            pytest.skip("no route out of this host")
        assert probe.getsockname()[0] in host_addresses()


def test_loopback_and_link_local_are_left_out_and_ipv4_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_ipv4_addresses", lambda: ["127.0.0.1", "10.0.0.7", "169.254.3.4", "172.16.0.7"])
    monkeypatch.setattr(addresses, "_ipv6_addresses", lambda: ["::1", "fe80::1", "2001:db8::7"])
    assert host_addresses() == ["10.0.0.7", "172.16.0.7", "2001:db8::7"]


def test_ipv6_addresses_are_read_as_the_kernel_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n20010db8000000000000000000000007 02 40 00 80     eth0\n"
    )
    real_open = open
    monkeypatch.setattr("builtins.open", lambda path, *more, **options: real_open(table, *more, **options))
    assert addresses._ipv6_addresses() == ["::1", "2001:db8::7"]


def test_a_host_without_ipv6_has_no_ipv6_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str, *more: object, **options: object) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr("builtins.open", missing)
    assert addresses._ipv6_addresses() == []


def test_an_interface_without_an_address_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces = socket.if_nameindex()
    monkeypatch.setattr(socket, "if_nameindex", lambda: [*interfaces, (99, "no-such-iface-1")])
    assert "127.0.0.1" in addresses._ipv4_addresses()
