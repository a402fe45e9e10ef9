"""The addresses that a leader publishes, and the address of Ray's head."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from muster.agent.leader.leader_address import PEER_WAIT_S, LeaderAddress
from muster.agent.net.netlink import Interface

HOST = [
    Interface("eth0", True, ("192.168.1.7/24",)),
    Interface("ib0", True, ("10.1.0.7/16",)),
]


def leader(
    monkeypatch: pytest.MonkeyPatch, interface: str | None, env: Mapping[str, str], local: bool
) -> LeaderAddress:
    monkeypatch.setattr("muster.agent.net.addresses.interfaces", lambda: HOST)
    monkeypatch.setattr("muster.agent.leader.leader_address.address_towards", lambda peer: peer or None)
    return LeaderAddress(local, interface, env)


def test_the_network_that_slurm_uses_comes_first_and_needs_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    where = leader(monkeypatch, None, {"SLURM_LAUNCH_NODE_IPADDR": "10.1.0.7"}, local=False)
    assert where.addresses[0] == "10.1.0.7" and where.addresses[-1] == "127.0.0.1"
    assert where.peer_timeout() == PEER_WAIT_S


def test_of_several_networks_the_head_is_on_the_one_most_nodes_came_by(monkeypatch: pytest.MonkeyPatch) -> None:
    where = leader(monkeypatch, "ib0,eth0", {"SLURM_LAUNCH_NODE_IPADDR": "192.168.1.7"}, local=False)
    assert where.peer_timeout() is None, "nobody knows whether the first is reached: wait for proof"
    assert where.head_address(["192.168.1.7", "10.1.0.7", "192.168.1.7"]) == "192.168.1.7"
    assert where.head_address([]) == "10.1.0.7"


def test_virtual_nodes_of_one_machine_meet_on_loopback_whatever_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leader(monkeypatch, "ib0", {}, local=True).addresses == ["127.0.0.1"]


def test_an_interface_without_address_leaves_loopback_for_the_agent_of_this_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert leader(monkeypatch, "eth9", {}, local=False).addresses == ["127.0.0.1"]
