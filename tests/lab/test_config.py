"""Files rendered from a lab's plan: configuration, addresses, start scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.lab import LabError, boot, config
from muster.lab.plan import CONTROLLER, LOGIN, LabPlan


def settings(plan: LabPlan) -> dict[str, str]:
    return dict(line.split("=", 1) for line in config.slurm_conf(plan, "myhost").splitlines())


def test_slurm_conf_of_four_nodes() -> None:
    conf = config.slurm_conf(LabPlan(nodes=4), "myhost")
    assert (
        "NodeName=n[1-4] NodeAddr=10.77.0.[1-4] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 "
        "RealMemory=65536 Gres=gpu:4 State=UNKNOWN\n"
    ) in conf
    assert "PartitionName=lab Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP\n" in conf
    assert "PartitionName=long Nodes=n[1-4] MaxTime=INFINITE State=UP\n" in conf
    assert "SlurmctldHost=labctl(10.77.0.253)\n" in conf
    assert conf.endswith("NodeName=myhost NodeAddr=10.77.0.254 State=FUTURE\n")
    assert "FUTURE" not in config.slurm_conf(LabPlan(nodes=4), "n2")


def test_slurm_conf_is_prompt_and_remembers() -> None:
    conf = settings(LabPlan(nodes=1))
    assert conf["ReturnToService"] == "2" and conf["JobRequeue"] == "1" and conf["InactiveLimit"] == "0"
    assert conf["MpiDefault"] == "none" and int(conf["MinJobAge"]) >= 300
    assert "bf_interval=1" in conf["SchedulerParameters"]
    assert not {"PrologFlags", "Prolog", "Epilog"} & set(conf)


def test_options_reach_slurm_conf() -> None:
    plan = LabPlan(nodes=2, proctrack="pgid", slurmd_timeout=7, kill_wait=3, gpus=0, extra_conf=("MaxArraySize=5",))
    conf = settings(plan)
    assert conf["ProctrackType"] == "proctrack/pgid"
    assert (conf["SlurmdTimeout"], conf["KillWait"], conf["MaxArraySize"]) == ("7", "3", "5")
    assert "Gres=" not in config.slurm_conf(plan, "myhost") and config.gres_conf(plan) == ""


def test_all_paths_are_in_the_state_directory() -> None:
    plan = LabPlan(nodes=2, state_dir=Path("/run/elsewhere"))
    paths = [word.split("=")[-1] for word in config.slurm_conf(plan, "myhost").split() if "=/" in word]
    assert paths and all(path.startswith("/run/elsewhere/") or path == "/bin/true" for path in paths)


def test_nodes_know_all_names_and_this_machine_by_its_own() -> None:
    plan = LabPlan(nodes=2)
    assert config.hosts(plan, "myhost", "n1").splitlines()[1:] == [
        "10.77.0.253 labctl",
        "10.77.0.1 n1",
        "10.77.0.2 n2",
        "10.77.0.254 login myhost",
    ]
    assert config.hosts(plan, "n2", "n1").endswith("10.77.0.254 login\n")


def test_a_debian_node_s_own_name_and_no_other_is_loopback_to_it() -> None:
    plan = LabPlan(nodes=2, debian_hosts=True)
    lines = config.hosts(plan, "myhost", "n1").splitlines()
    assert "127.0.1.1 n1" in lines and "10.77.0.2 n2" in lines and "10.77.0.1 n1" not in lines
    assert "127.0.1.1" not in config.hosts(plan, "myhost", CONTROLLER)


def test_without_ipv4_every_address_is_ipv6() -> None:
    plan = LabPlan(nodes=2, ipv6=True, extra_networks=1)
    conf = config.slurm_conf(plan, "myhost")
    assert "CommunicationParameters=EnableIPv6,DisableIPv4\n" in conf
    assert "SlurmctldHost=labctl(fd77:0:0::253)\n" in conf and "NodeAddr=fd77:0:0::[1-2] " in conf
    assert plan.address("n2", 1) == "fd77:1:0::2" and plan.subnet(1) == "fd77:1:0::/64"
    assert "10.7" not in conf + config.hosts(plan, "myhost", "n1") + boot.boot_script(plan, "n1", [], None)


def test_each_network_of_a_node_has_its_own_addresses_and_routes_and_the_dead_one_none() -> None:
    plan = LabPlan(nodes=2, extra_networks=1, dead_interface=True)
    script = boot.boot_script(plan, "n2", [], None)
    assert (
        "ip route add default via 10.77.0.253\n" in script and "ip route add 10.78.0.0/24 via 10.78.0.253\n" in script
    )
    assert script.index("dead0") < script.index("eth0") < script.index("eth1")
    assert "ip address add 10.86.0.2/24 dev dead0\n" in script


def test_labs_in_different_directories_share_no_name_and_no_address() -> None:
    one, other = LabPlan(nodes=64), LabPlan(nodes=64, state_dir=Path("/run/elsewhere"))
    names = (*one.node_names, CONTROLLER, LOGIN)
    assert not {one.address(name) for name in names} & {other.address(name) for name in names}
    assert not {one.mac(name) for name in names} & {other.mac(name) for name in names}
    assert one.host_link != other.host_link and one.mark != other.mark


def test_a_plan_survives_its_state_file() -> None:
    plan = LabPlan(nodes=3, shared=(Path("/tmp/a"),), extra_conf=("MaxArraySize=5",), ipv6=True, extra_networks=2)
    assert LabPlan.from_json(plan.to_json()) == plan


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
