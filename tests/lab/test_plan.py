"""The plan of a lab contains names, addresses, paths and limits."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest

from muster.lab import LabError
from muster.lab.plan import CONTROLLER, DEFAULT_STATE_DIR, LOGIN, MAX_NODES, LabPlan, chosen_state_dir
from muster.lab.users import LabUser


def test_labs_in_different_directories_share_no_name_and_no_address() -> None:
    one, other = LabPlan(nodes=64), LabPlan(nodes=64, state_dir=Path("/run/elsewhere"))
    names = (*one.node_names, CONTROLLER, LOGIN)
    assert not {one.address(name) for name in names} & {other.address(name) for name in names}
    assert not {one.mac(name) for name in names} & {other.mac(name) for name in names}
    assert one.host_link != other.host_link and one.mark != other.mark


def test_what_belongs_to_a_lab_is_told_from_that_of_a_lab_with_the_same_addresses() -> None:
    plans: dict[int, LabPlan] = {}
    for n in range(251):
        plan = LabPlan(nodes=1, state_dir=Path(f"/run/lab-{n}"))
        other = plans.setdefault(plan.number, plan)
        if other is not plan:
            assert plan.address(LOGIN) == other.address(LOGIN)
            assert plan.host_link != other.host_link and plan.mark != other.mark
            return
    pytest.fail("251 labs have 250 numbers")


def test_a_plan_survives_its_state_file() -> None:
    plan = LabPlan(
        nodes=3,
        shared=(Path("/tmp/a"),),
        extra_conf=("MaxArraySize=5",),
        ipv6=True,
        extra_networks=2,
        users=(LabUser("alice", 5001),),
        closed=(Path("/root"),),
    )
    assert LabPlan.from_json(plan.to_json()) == plan
    other = LabPlan(nodes=1, slurm_prefix=Path("/cache/24.11"), topology=("BlockSizes=2",))
    assert LabPlan.from_json(json.loads(json.dumps(other.to_json()))) == other


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"nodes": 0}, "1 to 64"),
        ({"nodes": 65}, "1 to 64"),
        ({"nodes": 1, "proctrack": "linuxproc"}, "cgroup, pgid"),
        ({"nodes": 1, "extra_networks": 9}, "0 to 8"),
        ({"nodes": 1, "state_dir": Path("/run/" + "x" * 80)}, "MUSTER_LAB_DIR"),
    ],
)
def test_an_impossible_plan_is_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(LabError, match=told):
        LabPlan(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("ipv6", [False, True])
def test_all_addresses_of_a_network_are_different_and_in_its_subnet(ipv6: bool) -> None:
    plan = LabPlan(nodes=MAX_NODES, ipv6=ipv6, extra_networks=8)
    names = (*plan.node_names, CONTROLLER, LOGIN)
    seen: set[str] = set()
    for network in plan.networks:
        addresses = {plan.address(name, network) for name in names}
        assert len(addresses) == len(names) and not addresses & seen
        assert all(ipaddress.ip_address(one) in ipaddress.ip_network(plan.subnet(network)) for one in addresses)
        seen |= addresses


@pytest.mark.parametrize("ipv6", [False, True])
def test_the_dead_interface_is_in_no_network_of_the_lab(ipv6: bool) -> None:
    plan = LabPlan(nodes=2, ipv6=ipv6, extra_networks=8, dead_interface=True)
    dead = ipaddress.ip_interface(plan.dead_address("n1")).network
    assert not any(dead.overlaps(ipaddress.ip_network(plan.subnet(network))) for network in plan.networks)


def test_a_single_address_has_the_longest_prefix() -> None:
    assert (LabPlan(nodes=1).single_prefix, LabPlan(nodes=1, ipv6=True).single_prefix) == (32, 128)


def test_hardware_addresses_are_local_unicast_and_differ_by_machine_and_network() -> None:
    plan = LabPlan(nodes=MAX_NODES, extra_networks=8)
    macs = [plan.mac(name, network) for name in (*plan.node_names, CONTROLLER, LOGIN) for network in plan.networks]
    assert len(set(macs)) == len(macs)
    assert all(int(mac[:2], 16) & 0b11 == 0b10 for mac in macs)


def test_the_host_s_link_has_a_name_that_the_kernel_accepts() -> None:
    plans = [LabPlan(nodes=1, state_dir=Path(f"/run/lab-{i}")) for i in range(50)]
    assert all(len(plan.host_link) < 16 and 1 <= plan.number <= 250 for plan in plans)
    assert LabPlan(nodes=1).number == 0


def test_each_machine_has_its_own_logs_and_hosts_file() -> None:
    plan = LabPlan(nodes=2)
    assert plan.log_file(CONTROLLER).name == "slurmctld.log"
    assert plan.log_file("n2").name == "slurmd-n2.log"
    for path_of in (plan.log_file, plan.boot_log, plan.hosts_file):
        assert len({path_of(name) for name in (CONTROLLER, *plan.node_names)}) == 3


def test_a_machine_that_the_lab_does_not_have_has_no_address() -> None:
    with pytest.raises(ValueError):
        LabPlan(nodes=2).address("n3")


def test_the_state_directory_is_the_given_one_else_the_variable_s_else_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert chosen_state_dir(None) == DEFAULT_STATE_DIR.resolve()
    monkeypatch.setenv("MUSTER_LAB_DIR", str(tmp_path / "a" / ".." / "b"))
    assert chosen_state_dir(None) == tmp_path.resolve() / "b"
    assert chosen_state_dir("/run/given") == Path("/run/given").resolve()


def test_a_user_has_a_home_and_an_unknown_one_is_refused_with_the_known_names() -> None:
    plan = LabPlan(nodes=1, users=(LabUser("alice", 5001), LabUser("bob", 5002)))
    assert plan.home(plan.user("bob")) == DEFAULT_STATE_DIR / "home" / "bob"
    with pytest.raises(LabError, match="no user 'carol' in the lab; its users are: alice, bob"):
        plan.user("carol")
    with pytest.raises(LabError, match="none; `muster lab up --user NAME` adds one"):
        LabPlan(nodes=1).user("carol")
