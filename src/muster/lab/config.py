"""Render the files that Slurm and the nodes read: slurm.conf, gres.conf, cgroup.conf, hosts, resolv.conf (pure)."""

from __future__ import annotations

from muster.lab.plan import CONTROLLER, LOGIN, LabPlan

#: Schedule at once instead of in batches, so that tests do not wait for the scheduler.
SCHEDULER_PARAMETERS = "bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0"


def slurm_conf(plan: LabPlan, login_name: str) -> str:
    """Return slurm.conf, with the plan's extra lines last; `login_name` is this machine's short host name."""
    cluster = (*_nodes(plan), *_login(plan, login_name))
    sections = (_daemons(plan), _tracking(plan), _timing(plan), _scheduling(), cluster, plan.extra_conf)
    return "\n".join(line for section in sections for line in section) + "\n"


def _daemons(plan: LabPlan) -> tuple[str, ...]:
    return (
        "ClusterName=muster-lab",
        f"SlurmctldHost={CONTROLLER}({plan.address(CONTROLLER)})",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={plan.munge_socket}",
        "CredType=cred/munge",
        f"StateSaveLocation={plan.spool_dir}/ctl",
        f"SlurmdSpoolDir={plan.spool_dir}/%n",
        f"SlurmctldPidFile={plan.spool_dir}/slurmctld.pid",
        f"SlurmdPidFile={plan.spool_dir}/slurmd-%n.pid",
        f"SlurmctldLogFile={plan.log_file(CONTROLLER)}",
        f"SlurmdLogFile={plan.log_dir}/slurmd-%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "MailProg=/bin/true",
        "SwitchType=switch/none",
        "MpiDefault=none",
        *([f"PluginDir={plan.slurm_prefix}/plugins"] if plan.slurm_prefix else []),
        *(["CommunicationParameters=EnableIPv6,DisableIPv4"] if plan.ipv6 else []),
    )


def _tracking(plan: LabPlan) -> tuple[str, ...]:
    return (
        f"ProctrackType=proctrack/{plan.proctrack}",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "JobCompType=jobcomp/none",
        "AccountingStorageType=accounting_storage/none",
    )


def _timing(plan: LabPlan) -> tuple[str, ...]:
    return (
        f"SlurmdTimeout={plan.slurmd_timeout}",
        f"KillWait={plan.kill_wait}",
        "InactiveLimit=0",
        "WaitTime=0",
        # Keep ended jobs visible to `scontrol show job`.
        "MinJobAge=3600",
        "ReturnToService=2",
        "JobRequeue=1",
    )


def _scheduling() -> tuple[str, ...]:
    return (
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={SCHEDULER_PARAMETERS}",
        "PriorityType=priority/basic",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
    )


def _nodes(plan: LabPlan) -> tuple[str, ...]:
    span = f"[1-{plan.nodes}]" if plan.nodes > 1 else "1"
    addresses = plan.address("n1").removesuffix("1") + span
    hardware = (
        f"CPUs={plan.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={plan.cpus} ThreadsPerCore=1 "
        f"RealMemory={plan.memory_mb}"
    )
    gres = f" Gres=gpu:{plan.gpus}" if plan.gpus else ""
    return (
        # Use the hardware declared here, whatever the machine has.
        "SlurmdParameters=config_overrides",
        "GresTypes=gpu",
        f"NodeName=n{span} NodeAddr={addresses} {hardware}{gres} State=UNKNOWN",
        f"PartitionName=lab Nodes=n{span} Default=YES MaxTime=INFINITE State=UP",
        f"PartitionName=long Nodes=n{span} MaxTime=INFINITE State=UP",
    )


def _login(plan: LabPlan, login_name: str) -> tuple[str, ...]:
    """Declare this machine, so that slurmctld can notify an srun here of a node's failure; else that srun never ends.

    Slurm 22.05 reads the address of an srun only from its node table. A FUTURE node is only in that table.
    """
    if login_name in _names(plan):
        return ()
    return (f"NodeName={login_name} NodeAddr={plan.address(LOGIN)} State=FUTURE",)


def _names(plan: LabPlan) -> tuple[str, ...]:
    return (*plan.node_names, CONTROLLER, LOGIN)


def gres_conf(plan: LabPlan) -> str:
    """Return the GPUs' device files; the flag makes Slurm set CUDA_VISIBLE_DEVICES, not AMD's or Intel's variables."""
    return "".join(f"Name=gpu File={path} Flags=nvidia_gpu_env\n" for path in gres_files(plan))


def gres_files(plan: LabPlan) -> tuple[str, ...]:
    return tuple(f"{plan.gres_dir}/gpu{i}" for i in range(plan.gpus))


def cgroup_conf() -> str:
    """Configure only process tracking, with v1's freezer, and no limits."""
    return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


def hosts(plan: LabPlan, login_name: str, reader: str) -> str:
    """Return the /etc/hosts of a machine, with every machine of the lab and this host."""
    lines = ["127.0.0.1 localhost"]
    if plan.ipv6:
        lines.append("::1 localhost")
    for name in (CONTROLLER, *plan.node_names):
        own = plan.debian_hosts and name == reader != CONTROLLER
        lines.append(f"{'127.0.1.1' if own else plan.address(name)} {name}")
    login_names = LOGIN if login_name in _names(plan) else f"{LOGIN} {login_name}"
    lines.append(f"{plan.address(LOGIN)} {login_names}")
    return "\n".join(lines) + "\n"


def resolv_conf() -> str:
    """Configure a nameserver that refuses at once; with an unreachable one gRPC's name lookups hang."""
    return "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
