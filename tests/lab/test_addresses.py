"""Nodes with several interfaces find the network that connects them, even if their name resolves to 127.0.1.1."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.lab.conftest import SlurmCommand

LAB = {"nodes": 3, "extra_networks": 1, "dead_interface": True, "debian_hosts": True}
RAY_ADDRESSES = "import ray; ray.init(); print('ray on', *sorted(n['NodeManagerAddress'] for n in ray.nodes()))"


def leader(slurm: SlurmCommand) -> Any:
    return json.loads((slurm.run_dir() / "attempt-0" / "lead-0.json").read_text())


def test_a_node_s_name_means_loopback_to_itself_and_its_dead_interface_is_listed_first(slurm: SlurmCommand) -> None:
    assert slurm.on_node("n1", "getent", "hosts", "n1").stdout.split() == ["127.0.1.1", "n1"]
    listed = slurm.on_node("n1", "ip", "-4", "-oneline", "address").stdout.split()
    assert listed.index("dead0") < listed.index("eth0") < listed.index("eth1")


@pytest.mark.slow
@pytest.mark.ray
def test_of_the_chosen_interfaces_ray_is_on_the_one_that_connects_the_nodes(slurm: SlurmCommand) -> None:
    plan = slurm.lab.plan
    done = slurm.run("--interface", "dead0,eth1", "--", "python", "-c", RAY_ADDRESSES, nodes=2, ray=True)
    assert done.returncode == 0, done.stderr
    assert f"ray on {plan.address('n1', 1)} {plan.address('n2', 1)}" in done.stdout
    assert leader(slurm)["addresses"] == [plan.dead_address("n1").partition("/")[0], plan.address("n1", 1), "127.0.0.1"]


def test_without_a_choice_slurm_s_own_network_comes_first_and_loopback_names_have_no_effect(
    slurm: SlurmCommand,
) -> None:
    assert slurm.run("--", "true", nodes=3).returncode == 0
    found = leader(slurm)["addresses"]
    assert found[0] == slurm.lab.plan.address("n1")
    assert slurm.lab.plan.address("n1", 1) in found and "127.0.1.1" not in found


@pytest.mark.parametrize("how", ["name", "network", "address"])
def test_an_interface_is_chosen_by(slurm: SlurmCommand, how: str) -> None:
    plan = slurm.lab.plan
    wanted = {"name": "eth1", "network": plan.subnet(1), "address": plan.address("n2", 1)}[how]
    done = slurm.run("--interface", wanted, "--", "true", nodes=3)
    assert done.returncode == 0, done.stderr
    assert leader(slurm)["addresses"] == [plan.address("n1", 1), "127.0.0.1"]


def test_a_misspelt_interface_is_refused_with_those_that_there_are(slurm: SlurmCommand) -> None:
    done = slurm.run("--interface", "ib0", "--", "true", nodes=3)
    assert done.returncode == 125
    assert "node n1 (index 0) failed in phase 'network': --interface ib0 matches no address of this host" in done.stderr
    assert f"eth0 ({slurm.lab.plan.address('n1')}), eth1 ({slurm.lab.plan.address('n1', 1)})" in done.stderr


def test_a_node_without_the_interface_is_named(slurm: SlurmCommand) -> None:
    slurm.on_node("n2", "ip", "link", "set", "eth1", "down")
    slurm.on_node("n2", "ip", "link", "set", "eth1", "name", "eth5")
    try:
        done = slurm.run("--interface", "eth1", "--", "true", nodes=3)
    finally:
        slurm.on_node("n2", "ip", "link", "set", "eth5", "name", "eth1")
        slurm.on_node("n2", "ip", "link", "set", "eth1", "up")
    assert done.returncode == 125
    assert "node n2 (index 1) failed in phase 'network'" in done.stderr
    assert f"eth5 ({slurm.lab.plan.address('n2', 1)})" in done.stderr
