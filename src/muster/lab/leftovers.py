"""Find what a lab left on this host: processes, links, mounts, cgroups, files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from muster.lab import cgroup, network
from muster.lab.plan import LabPlan
from muster.lab.process import ProcessId, all_pids
from muster.process.proctree import read_proc_file

_SLURM_CLIENTS = frozenset({"srun", "salloc", "sbatch"})


def find(plan: LabPlan) -> list[str]:
    """Return a line for each remaining object of the lab in this state directory; empty when clean."""
    found = [f"process {one.pid} ({_name(one.pid)}) in a machine of the lab" for one in machine_processes(plan)]
    found += [f"process {one.pid} ({_name(one.pid)}) still uses the lab" for one in clients(plan)]
    if network.host_link_exists(plan):
        found.append(f"network link {plan.host_link}")
    found += [f"mount {mount}" for mount in _mounts(plan)]
    if cgroup.root(plan).exists():
        found.append(f"cgroup {cgroup.root(plan)}")
    if plan.state_file.exists():
        found.append(f"state directory {plan.state_dir}")
    return found


def machine_processes(plan: LabPlan) -> list[ProcessId]:
    """Return the processes in the lab's mount namespaces, recognized by the mark on the mounts."""
    return _living(pid for pid in all_pids() if f" - tmpfs {plan.mark} " in read_proc_file(f"/proc/{pid}/mountinfo"))


def clients(plan: LabPlan) -> list[ProcessId]:
    """Return Slurm commands on this host that use the lab: without it they would hang."""
    mark = f"\0SLURM_CONF={plan.slurm_conf}\0"
    return _living(
        pid
        for pid in all_pids()
        if _name(pid) in _SLURM_CLIENTS and mark in f"\0{read_proc_file(f'/proc/{pid}/environ')}\0"
    )


def _living(pids: Iterable[int]) -> list[ProcessId]:
    found = (ProcessId.find(pid) for pid in pids)
    return [process for process in found if process and process.alive()]


def _mounts(plan: LabPlan) -> list[str]:
    targets = (line.split()[4] for line in read_proc_file("/proc/self/mountinfo").splitlines())
    return [target for target in targets if Path(target) == plan.state_dir or plan.state_dir in Path(target).parents]


def _name(pid: int) -> str:
    return read_proc_file(f"/proc/{pid}/comm").strip()
