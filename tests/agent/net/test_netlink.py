"""Interfaces and addresses as the kernel lists them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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


def test_the_kernel_s_list_has_secondary_addresses_and_both_families_but_no_deprecated_ones() -> None:
    namespace = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*namespace, "ip", "link"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    done = subprocess.run(
        [*namespace, "sh", "-ec", IN_A_NAMESPACE, "sh", sys.executable, "-c", LIST], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)}
    permanent = [address for address in found["net0"]["addresses"] if not address.startswith("fe80")]
    assert permanent == ["10.5.0.1/24", "10.5.0.2/24", "fd05::1/64"]
    assert "10.6.0.1/32" in found["net1"]["addresses"]
    assert [name for name in found if not found[name]["running"]] == ["net3", "net2"]
