"""Addresses that a peer may reach: those of this host, and which of any host's come first or are meant."""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
import sys
from collections.abc import Mapping

import pytest

from muster.agent.job import Identity
from muster.agent.leader.leader_address import LeaderAddress
from muster.agent.net.addresses import NoAddress, address_towards, choose, host_addresses, own_address
from muster.agent.net.netlink import Interface
from muster.rundir import RunPaths

HOST = [
    Interface("lo", True, ("127.0.0.1/8", "127.0.1.1/8", "::1/128")),
    Interface("docker0", True, ("172.17.0.1/16",)),
    Interface("idrac", False, ("10.9.0.7/24",)),
    Interface("eth0", True, ("192.168.1.7/24", "192.168.1.8/24", "fe80::7/64", "2001:db8::7/64")),
    Interface("ib0", True, ("10.1.0.7/16", "169.254.3.4/16")),
    Interface("ib1", True, ()),
]


def chosen(wanted: str | None) -> list[str]:
    return [str(address.ip) for address in choose(HOST, wanted)]


# -- of any host ------------------------------------------------------------------------------------------------


def test_loopback_and_link_local_are_left_out_and_what_leads_nowhere_comes_last() -> None:
    connected = ["192.168.1.7", "192.168.1.8", "10.1.0.7", "2001:db8::7"]
    assert chosen(None) == [*connected, "10.9.0.7", "172.17.0.1"]


@pytest.mark.parametrize(
    ("wanted", "meant"),
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
def test_an_interface_is_meant_by_name_pattern_network_or_address(wanted: str, meant: list[str]) -> None:
    assert chosen(wanted) == meant


@pytest.mark.parametrize("wanted", ["eth9", "ib1", "lo", "10.2.0.0/16", "10.2.0.1", "docker"])
def test_what_means_no_address_is_refused_with_what_there_is(wanted: str) -> None:
    with pytest.raises(NoAddress) as refused:
        choose(HOST, wanted)
    assert f"--interface {wanted} means no address of this host" in str(refused.value)
    assert "eth0 (192.168.1.7, 192.168.1.8, 2001:db8::7), ib0 (10.1.0.7), ib1 (without address)" in str(refused.value)


def node(monkeypatch: pytest.MonkeyPatch, host: list[Interface] = HOST) -> None:
    monkeypatch.setattr("muster.agent.net.addresses.interfaces", lambda: host)


def test_a_node_calls_itself_what_its_connection_to_the_leader_has_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    node(monkeypatch)
    assert own_address(None, "192.168.1.8") == "192.168.1.8"
    assert own_address("eth0", "192.168.1.8") == "192.168.1.8"


def test_an_interface_given_wins_over_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    node(monkeypatch)
    assert own_address("ib0", "192.168.1.8") == "10.1.0.7"


def test_a_temporary_address_of_the_connection_gives_way_to_the_lasting_one(monkeypatch: pytest.MonkeyPatch) -> None:
    node(monkeypatch)
    assert own_address(None, "2001:db8::dead:beef") == "2001:db8::7"
    assert own_address(None, "203.0.113.9") == "203.0.113.9"  # one the kernel does not list, but it works


# -- of the leader ------------------------------------------------------------------------------------------------


def leader(
    monkeypatch: pytest.MonkeyPatch, interface: str | None, env: Mapping[str, str], local: bool
) -> LeaderAddress:
    node(monkeypatch)
    monkeypatch.setattr("muster.agent.leader.leader_address.address_towards", lambda peer: peer or None)
    run = RunPaths("/runs/x")
    return LeaderAddress(Identity(0, "n1", run, run.attempt(0), local=local), interface, env)


def test_the_network_that_slurm_uses_comes_first_and_needs_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    where = leader(monkeypatch, None, {"SLURM_LAUNCH_NODE_IPADDR": "10.1.0.7"}, local=False)
    assert where.addresses[0] == "10.1.0.7" and where.addresses[-1] == "127.0.0.1"
    assert where.peer_timeout() is not None


def test_of_several_networks_the_head_is_on_the_one_most_nodes_came_by(monkeypatch: pytest.MonkeyPatch) -> None:
    where = leader(monkeypatch, "ib0,eth0", {"SLURM_LAUNCH_NODE_IPADDR": "192.168.1.7"}, local=False)
    assert where.peer_timeout() is None, "nobody knows whether the first is reached: wait for proof"
    assert where.head_address(["192.168.1.7", "10.1.0.7", "192.168.1.7"]) == "192.168.1.7"
    assert where.head_address([]) == "10.1.0.7"


def test_virtual_nodes_of_one_machine_meet_on_loopback_whatever_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leader(monkeypatch, "ib0", {}, local=True).addresses == ["127.0.0.1"]


# -- of this host -----------------------------------------------------------------------------------------------


def test_every_offered_address_is_this_host_s_and_no_other_host_s_idea_of_itself() -> None:
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


IN_A_NAMESPACE = """
ip link set lo up
ip link add net0 type veth peer name net1
ip link add net2 type veth peer name net3
ip link set net0 up
ip link set net1 up
ip address add 10.5.0.1/24 dev net0
ip address add 10.5.0.2/24 dev net0
ip address add fd05::1/64 dev net0 nodad
ip address add fd05::2/64 dev net0 nodad preferred_lft 0
ip address add 10.6.0.1 peer 10.6.0.9 dev net1
exec "$@"
"""
LIST = """
import dataclasses, json
from muster.agent.net.netlink import interfaces
print(json.dumps([dataclasses.asdict(one) for one in interfaces()]))
"""


def test_the_kernel_s_list_has_secondary_addresses_and_both_families_but_none_on_its_way_out() -> None:
    namespace = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*namespace, "ip", "link"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    done = subprocess.run(
        [*namespace, "sh", "-ec", IN_A_NAMESPACE, "sh", sys.executable, "-c", LIST], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)}
    lasting = [address for address in found["net0"]["addresses"] if not address.startswith("fe80")]
    assert lasting == ["10.5.0.1/24", "10.5.0.2/24", "fd05::1/64"]
    assert "10.6.0.1/32" in found["net1"]["addresses"]
    assert [name for name in found if not found[name]["running"]] == ["net3", "net2"]
