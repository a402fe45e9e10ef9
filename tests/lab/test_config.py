"""The lab's plan is rendered to slurm.conf, gres.conf, cgroup.conf, hosts and resolv.conf."""

from __future__ import annotations

from pathlib import Path

from muster.lab import boot, config
from muster.lab.plan import CONTROLLER, LabPlan


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


def test_a_release_in_a_prefix_has_its_plugins_there() -> None:
    assert "PluginDir" not in settings(LabPlan(nodes=1))
    assert settings(LabPlan(nodes=1, slurm_prefix=Path("/cache/24.11")))["PluginDir"] == "/cache/24.11/plugins"


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


def test_each_gpu_is_a_device_file_for_cuda() -> None:
    plan = LabPlan(nodes=1, gpus=2)
    assert config.gres_files(plan) == ("/run/muster-lab/gres/gpu0", "/run/muster-lab/gres/gpu1")
    assert config.gres_conf(plan).splitlines() == [
        "Name=gpu File=/run/muster-lab/gres/gpu0 Flags=nvidia_gpu_env",
        "Name=gpu File=/run/muster-lab/gres/gpu1 Flags=nvidia_gpu_env",
    ]


def test_one_node_is_named_without_a_range() -> None:
    assert "NodeName=n1 NodeAddr=10.77.0.1 CPUs=8" in config.slurm_conf(LabPlan(nodes=1), "myhost")


def test_names_outside_the_lab_are_refused_by_a_nameserver_on_loopback() -> None:
    assert config.resolv_conf().startswith("nameserver 127.0.0.1\n")


def test_processes_are_tracked_with_version_1_of_cgroups() -> None:
    assert config.cgroup_conf() == "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
