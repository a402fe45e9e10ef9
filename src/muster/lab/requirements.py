"""Check whether this machine can run a lab."""

from __future__ import annotations

import os
import shutil

from muster.lab import cgroup
from muster.lab.errors import LabUnavailable
from muster.lab.plan import LabPlan

#: Directories of the daemons, for callers whose PATH lacks the system directories.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PACKAGE_OF = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
    "munged": "munge",
    "ip": "iproute2",
    "tini": "tini",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}


def check_root() -> None:
    """Raise LabUnavailable without root, which namespaces, mounts and slurmd need."""
    if os.geteuid() != 0:
        raise LabUnavailable(
            "a lab needs root (namespaces, mounts, slurmd): run it with sudo or in a container as root"
        )


def check(plan: LabPlan) -> None:
    """Raise LabUnavailable, with what to install or change, if this lab cannot run here."""
    check_root()
    packages = missing_packages(search_path(plan))
    if packages:
        raise LabUnavailable(f"missing packages: install with `apt-get install {' '.join(packages)}`")
    if plan.proctrack == "cgroup":
        cgroup.check_available()
    if plan.ipv6 and not os.path.exists("/proc/net/if_inet6"):
        raise LabUnavailable("this machine's kernel has no IPv6, which --ipv6 needs")


def search_path(plan: LabPlan) -> str:
    """Return the PATH of the lab's machines: the system's, after the programs of the lab's release of Slurm."""
    return f"{plan.slurm_prefix}/bin:{SYSTEM_PATH}" if plan.slurm_prefix else SYSTEM_PATH


def missing_packages(path: str | None = None) -> list[str]:
    """Return the Debian packages whose programs are not found in these directories, by default the system's."""
    searched = path or SYSTEM_PATH
    return sorted({package for program, package in _PACKAGE_OF.items() if not shutil.which(program, path=searched)})
