"""Write the lab's configuration and directories into the state directory."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from muster.lab import config
from muster.lab.plan import CONTROLLER, LabPlan

_MUNGE_KEY_BYTES = 1024


def write(plan: LabPlan) -> None:
    """Write everything that the machines need when they start."""
    spools = [plan.spool_dir / name for name in ("ctl", *plan.node_names)]
    directories = [plan.etc_dir, plan.log_dir, plan.munge_dir, plan.gres_dir, plan.boot_dir, plan.stage_dir]
    for directory in [*directories, plan.shared_dir, *spools]:
        directory.mkdir(parents=True, mode=0o755)
    _write_config(plan)
    for device in config.gres_files(plan):
        _make_device(Path(device))
    key = plan.munge_dir / "key"
    key.touch(mode=0o400)
    key.write_bytes(os.urandom(_MUNGE_KEY_BYTES))


def _make_device(path: Path) -> None:
    """Create a copy of /dev/null: Slurm also counts plain files as GPUs, but then sets no CUDA_VISIBLE_DEVICES."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        path.touch()


def _write_config(plan: LabPlan) -> None:
    login_name = socket.gethostname().partition(".")[0]
    contents = {
        "slurm.conf": config.slurm_conf(plan, login_name),
        "gres.conf": config.gres_conf(plan),
        "resolv.conf": config.resolv_conf(),
    }
    if plan.proctrack == "cgroup":
        contents["cgroup.conf"] = config.cgroup_conf()
    for name, text in contents.items():
        (plan.etc_dir / name).write_text(text)
    for name in (CONTROLLER, *plan.node_names):
        plan.hosts_file(name).write_text(config.hosts(plan, login_name, name))
