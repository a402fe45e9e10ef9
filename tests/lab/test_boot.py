"""The scripts that start a machine set up namespaces, private directories, the network and the daemon."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from muster.lab import boot
from muster.lab.plan import CONTROLLER, LabPlan
from muster.lab.users import LabUser

FREEZER = Path("/sys/fs/cgroup/freezer/muster-lab0/n1")


def test_each_network_of_a_node_has_its_own_addresses_and_routes_and_the_dead_one_none() -> None:
    plan = LabPlan(nodes=2, extra_networks=1, dead_interface=True)
    script = boot.boot_script(plan, "n2", [], None)
    assert (
        "ip route add default via 10.77.0.253\n" in script and "ip route add 10.78.0.0/24 via 10.78.0.253\n" in script
    )
    assert script.index("dead0") < script.index("eth0") < script.index("eth1")
    assert "ip address add 10.86.0.2/24 dev dead0\n" in script


def test_a_node_binds_through_only_what_its_private_directories_would_hide() -> None:
    plan = LabPlan(nodes=1)
    script = boot.boot_script(plan, "n1", [Path("/tmp/with space")], None).splitlines()
    bind = script.index("mount --rbind '/tmp/with space' '/run/muster-lab/stage/with space'")
    assert script[bind - 2 : bind] == [
        "mount -t tmpfs -o mode=1777 muster-lab0 /run/muster-lab/stage",
        "mkdir -p '/run/muster-lab/stage/with space'",
    ]
    assert script[bind + 1] == "mount --move /run/muster-lab/stage /tmp"
    assert script[-1] == "exec tini -- slurmd -D -b -N n1 -f /run/muster-lab/etc/slurm.conf"


def test_slurmd_of_a_release_in_a_prefix_starts_that_release_s_slurmstepd() -> None:
    plan = LabPlan(nodes=1, slurm_prefix=Path("/the cache/24.11"))
    script = boot.boot_script(plan, "n1", [], None)
    assert script.endswith(" -f /run/muster-lab/etc/slurm.conf -d '/the cache/24.11/bin/slurmstepd'\n")


@pytest.mark.parametrize("name", ["n1", CONTROLLER])
@pytest.mark.parametrize("freezer", [None, FREEZER])
@pytest.mark.parametrize("ipv6", [False, True])
def test_the_scripts_are_valid_shell_and_stop_at_the_first_error(name: str, freezer: Path | None, ipv6: bool) -> None:
    plan = LabPlan(nodes=1, ipv6=ipv6, extra_networks=2, dead_interface=True)
    for script in (boot.launch_script(plan, name, freezer), boot.boot_script(plan, name, [Path("/tmp/a b")], freezer)):
        assert script.startswith("#!/bin/sh\nset -e\n")
        subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=120)


def test_a_machine_enters_its_cgroup_before_it_has_namespaces() -> None:
    plan = LabPlan(nodes=1)
    assert boot.launch_script(plan, "n1", FREEZER).splitlines()[2:] == [
        f"echo 0 > {FREEZER}/cgroup.procs",
        "exec unshare --net --uts --mount --pid --cgroup --fork -- sh /run/muster-lab/boot/n1.boot",
    ]
    assert boot.launch_script(plan, "n1", None).splitlines()[2:] == [
        "exec unshare --net --uts --mount --pid --fork -- sh /run/muster-lab/boot/n1.boot"
    ]


def test_a_machine_sees_its_own_cgroup_as_the_root() -> None:
    plan = LabPlan(nodes=1)
    assert f"mount --bind {FREEZER} /sys/fs/cgroup/freezer\n" in boot.boot_script(plan, "n1", [], FREEZER)
    assert "cgroup" not in boot.boot_script(plan, "n1", [], None)


def test_a_machine_reads_its_outer_pid_before_proc_is_its_own_and_waits_for_its_network() -> None:
    lines = boot.boot_script(LabPlan(nodes=1), "n1", [], None).splitlines()
    order = ["read pid rest < /proc/self/stat", "mount -t proc proc /proc", 'echo "$pid"', "read go || exit 1"]
    places = [lines.index(line) for line in [*order, "ip link set lo up"]]
    assert places == sorted(places)
    assert not any(line.startswith("ip ") for line in lines[: places[3]])


def test_the_controller_runs_munge_and_slurmctld_and_routes_for_the_nodes() -> None:
    lines = boot.boot_script(LabPlan(nodes=2, extra_networks=1), CONTROLLER, [], None).splitlines()
    assert lines[-1] == "exec tini -- slurmctld -D -f /run/muster-lab/etc/slurm.conf"
    assert lines[-2].startswith("munged --force --num-threads=10 --key-file=/run/muster-lab/munge/key ")
    assert "echo 1 > /proc/sys/net/ipv4/ip_forward" in lines
    assert {f"echo 200 > /proc/sys/net/ipv4/neigh/br{network}/retrans_time_ms" for network in (0, 1)} <= set(lines)
    assert not any("eth0" in line or "slurmd" in line for line in lines[:-1])


def test_the_controller_of_an_ipv6_lab_sets_nothing_of_ipv4() -> None:
    script = boot.boot_script(LabPlan(nodes=1, ipv6=True), CONTROLLER, [], None)
    assert "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding\n" in script and "ipv4" not in script


def test_only_a_directory_below_a_private_one_is_bound_and_only_there() -> None:
    script = boot.boot_script(LabPlan(nodes=1), "n1", [Path("/dev/shm/x"), Path("/home/y"), Path("/tmp")], None)
    binds = [line for line in script.splitlines() if "--rbind" in line]
    assert binds == ["mount --rbind /dev/shm/x /run/muster-lab/stage/x"]
    assert script.index(binds[0]) > script.index("mount --move /run/muster-lab/stage /tmp")


def test_a_closed_directory_is_replaced_by_one_that_shows_only_what_must_be_visible() -> None:
    plan = LabPlan(nodes=1, users=(LabUser("alice", 5001),), closed=(Path("/root"),))
    python = Path("/root/python/3.11")
    expected = [
        "mount -t tmpfs -o mode=755 muster-lab0 /run/muster-lab/stage",
        "mkdir -p /run/muster-lab/stage/python/3.11",
        "mount --rbind /root/python/3.11 /run/muster-lab/stage/python/3.11",
        "mount --move /run/muster-lab/stage /root",
        "mount --bind /run/muster-lab/etc/passwd /etc/passwd",
        "mount --bind /run/muster-lab/etc/group /etc/group",
    ]
    assert boot.login_script(plan, [python]).splitlines() == ["#!/bin/sh", "set -e", *expected, 'exec "$@"']
    on_node = boot.boot_script(plan, "n1", [python], None).splitlines()
    assert [line for line in on_node if line in expected] == expected


def test_without_users_the_machine_s_accounts_and_directories_stay() -> None:
    script = boot.boot_script(LabPlan(nodes=1), "n1", [Path("/root/python")], None)
    assert "passwd" not in script and "/root" not in script
