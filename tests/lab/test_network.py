"""The lab checks routes and creates and removes links with `ip`, whose output is given here: no link is created."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.lab import LabError, network
from muster.lab.plan import LabPlan

PLAN = LabPlan(nodes=2, extra_networks=1, state_dir=Path("/run/lab-of-test-network"))
P = PLAN.number


class FakeIp:
    """Answers `ip` with prepared text, and records its command lines and its input."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []
        self.output, self.error = "", ""

    def __call__(self, argv: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        self.calls.append((argv, stdin.splitlines()))
        return subprocess.CompletedProcess(argv, 1 if self.error else 0, self.output, self.error)


@pytest.fixture
def ip(monkeypatch: pytest.MonkeyPatch) -> FakeIp:
    fake = FakeIp()
    monkeypatch.setattr(network, "_run", fake)
    return fake


@pytest.mark.parametrize(
    "routes",
    [
        [],
        [{"dst": "default", "dev": "eth0"}],
        [{"dst": "10.1.0.0/16", "dev": "eth0"}],
        [{"dst": f"10.77.{P}.255", "type": "broadcast", "dev": "eth0"}],
        [{"dst": f"10.77.{P}.0/24", "dev": PLAN.host_link}],  # of a lab that has just gone down
    ],
)
def test_addresses_that_no_route_covers_are_free(ip: FakeIp, routes: list[dict[str, Any]]) -> None:
    ip.output = json.dumps(routes)
    network.check_free(PLAN)


@pytest.mark.parametrize("destination", ["10.0.0.0/8", f"10.77.{P}.7", f"10.77.{P}.0/24"])
def test_an_overlapping_route_is_refused_by_name(ip: FakeIp, destination: str) -> None:
    ip.output = json.dumps([{"dst": "default", "dev": "eth0"}, {"dst": destination, "dev": "vpn0"}])
    with pytest.raises(LabError, match=rf"overlap the route to {destination} via vpn0; set MUSTER_LAB_DIR"):
        network.check_free(PLAN)


def test_the_routes_of_the_lab_s_own_family_are_examined(ip: FakeIp) -> None:
    ip.output = "[]"
    network.check_free(PLAN)
    network.check_free(LabPlan(nodes=1, ipv6=True, state_dir=PLAN.state_dir))
    assert [argv[2] for argv, _ in ip.calls] == ["-4", "-6"]


def test_an_existing_link_of_the_lab_is_refused(ip: FakeIp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "host_link_exists", lambda plan: True)
    with pytest.raises(LabError, match=f"network link {PLAN.host_link} exists"):
        network.check_free(PLAN)


def test_a_link_of_every_node_goes_to_the_bridge_of_every_network(ip: FakeIp) -> None:
    network.connect(PLAN, 7, {"n1": 11, "n2": 12})
    ((argv, lines),) = ip.calls
    assert argv == ["nsenter", "--net=/proc/7/ns/net", "--", "ip", "-batch", "-"]
    assert len(lines) == 8
    assert lines[2:4] == [
        f"link add to1-n1 type veth peer name eth1 address {PLAN.mac('n1', 1)} netns 11",
        "link set to1-n1 master br1 up",
    ]


def test_the_host_is_linked_to_the_first_network_only(ip: FakeIp) -> None:
    network.create_bridges(PLAN, 7)
    (host_argv, host), (controller_argv, controller) = ip.calls
    assert host_argv[0] == "ip" and controller_argv[0] == "nsenter"
    assert f"route add 10.77.{P}.0/24 via 10.77.{P}.253 src 10.77.{P}.254" in host
    assert not any(f"10.78.{P}." in line for line in host)
    assert [line.split()[2] for line in controller if line.startswith("link add")] == ["br0", "br1"]
    assert controller[-1] == "link set to0-login master br0 up"


def test_a_failure_of_ip_is_reported_with_its_message(ip: FakeIp) -> None:
    ip.error = "RTNETLINK answers: File exists\n"
    with pytest.raises(LabError, match=r"could not be configured: RTNETLINK answers: File exists$"):
        network.set_links(PLAN, 7, "n1", "down")


def test_all_links_of_a_node_are_cut_restored_or_removed(ip: FakeIp) -> None:
    network.set_links(PLAN, 7, "n2", "down")
    network.drop_links(PLAN, 7, "n2")
    assert ip.calls[0][1] == ["link set to0-n2 down", "link set to1-n2 down"]
    assert [argv[3:] for argv, _ in ip.calls[1:]] == [["ip", "link", "delete", f"to{i}-n2"] for i in (0, 1)]


def test_a_link_is_up_by_its_flag_and_a_machine_without_one_is_left_out(ip: FakeIp) -> None:
    links = [{"ifname": "to0-n1", "flags": ["BROADCAST", "UP"]}, {"ifname": "to0-n2", "flags": ["BROADCAST"]}, {}]
    ip.output = json.dumps(links)
    assert network.links_up(7, ["n1", "n2", "n3"]) == {"n1": True, "n2": False}
    ip.output = ""
    assert network.links_up(7, ["n1"]) == {}


def test_a_link_that_the_kernel_removes_first_is_no_error(ip: FakeIp, monkeypatch: pytest.MonkeyPatch) -> None:
    network.remove(PLAN)
    assert ip.calls == []  # there is none
    ip.error = "Cannot find device\n"
    answers = iter([True, False])
    monkeypatch.setattr(network, "host_link_exists", lambda plan: next(answers))
    network.remove(PLAN)
    monkeypatch.setattr(network, "host_link_exists", lambda plan: True)
    with pytest.raises(LabError, match=r"could not be removed: Cannot find device"):
        network.remove(PLAN)


def test_ipv6_addresses_are_usable_at_once() -> None:
    plan = LabPlan(nodes=1, ipv6=True, dead_interface=True)
    added = [
        line for line in (*network.node_lines(plan, "n1"), *network.dead_lines(plan, "n1")) if "address add" in line
    ]
    assert len(added) == 2 and all(line.endswith(" nodad") for line in added)
    assert network.dead_lines(LabPlan(nodes=1), "n1") == []


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and ip")
def test_the_link_is_looked_for_in_this_network_namespace_although_sys_shows_another_one() -> None:
    look = """
import subprocess
from muster.lab import network
from muster.lab.plan import LabPlan
plan = LabPlan(nodes=1)
print(network.host_link_exists(plan))
subprocess.run(["ip", "link", "add", plan.host_link, "type", "veth", "peer", "name", "other"], check=True)
print(network.host_link_exists(plan))
network.remove(plan)
print(network.host_link_exists(plan))
"""
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", look], capture_output=True, text=True)
    assert done.stdout == "False\nTrue\nFalse\n", done.stderr
