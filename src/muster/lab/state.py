"""The state directory of a lab: its claim, the files that the machines read, and the state file.

The state file holds the plan and the init process of each machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from muster.lab import config, users
from muster.lab.errors import LabError
from muster.lab.plan import CONTROLLER, LabPlan
from muster.lab.process import ProcessId

_MUNGE_KEY_BYTES = 1024


def check_unclaimed(plan: LabPlan) -> None:
    """Refuse a directory with a lab or any other contents, because `down` removes the directory."""
    found = load(plan.state_dir)
    if found is None:
        if plan.state_dir.exists() and (not plan.state_dir.is_dir() or any(plan.state_dir.iterdir())):
            raise LabError(f"state directory {plan.state_dir} exists and is not empty; set MUSTER_LAB_DIR to another")
    elif any(process.alive() for process in found[1].values()):
        raise LabError(f"a lab is already up in {plan.state_dir}; `muster lab down` ends it")
    else:
        raise LabError(f"a lab that no longer runs left {plan.state_dir} behind; `muster lab down` removes it")


def claim(plan: LabPlan) -> None:
    """Create the state directory and file of a new lab; of two concurrent callers, one succeeds."""
    plan.state_dir.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(plan.state_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        raise LabError(f"another lab is starting in {plan.state_dir}") from None
    save(plan, {})


def write_files(plan: LabPlan) -> None:
    """Create the directories, configuration, GPU devices and munge key that the machines need when they start."""
    spools = [plan.spool_dir / name for name in ("ctl", *plan.node_names)]
    directories = [plan.etc_dir, plan.log_dir, plan.munge_dir, plan.gres_dir, plan.boot_dir, plan.stage_dir]
    for directory in [*directories, plan.shared_dir, *spools]:
        directory.mkdir(parents=True, mode=0o755)
    _make_user_directories(plan)
    _write_config(plan)
    for device in config.gres_files(plan):
        _make_device(Path(device))
    key = plan.munge_dir / "key"
    with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as file:
        file.write(os.urandom(_MUNGE_KEY_BYTES))


def _make_user_directories(plan: LabPlan) -> None:
    """Create a private home directory for each user, and let all users create files in the shared directory."""
    for user in plan.users:
        home = plan.home(user)
        home.mkdir(parents=True)
        home.chmod(0o700)
        os.chown(home, user.uid, user.uid)
        plan.homes_dir.chmod(0o755)
        plan.shared_dir.chmod(0o1777)


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
    if plan.topology:
        contents["topology.conf"] = "\n".join(plan.topology) + "\n"
    if plan.users:
        contents["passwd"] = users.passwd_file(Path("/etc/passwd").read_text(), plan.users, plan.homes_dir)
        contents["group"] = users.group_file(Path("/etc/group").read_text(), plan.users)
    if plan.proctrack == "cgroup":
        contents["cgroup.conf"] = config.cgroup_conf()
    for name, text in contents.items():
        (plan.etc_dir / name).write_text(text)
    for name in (CONTROLLER, *plan.node_names):
        plan.hosts_file(name).write_text(config.hosts(plan, login_name, name))


def save(plan: LabPlan, machines: Mapping[str, ProcessId]) -> None:
    """Write the state atomically."""
    record = {
        "plan": plan.to_json(),
        "machines": {name: dataclasses.asdict(process) for name, process in machines.items()},
    }
    temporary = plan.state_file.with_suffix(".new")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(plan.state_file)


def load(state_dir: Path) -> tuple[LabPlan, dict[str, ProcessId]] | None:
    """Return the plan and the machines of the lab in a directory, or None if there is none."""
    path = state_dir / "lab.json"
    try:
        record = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except json.JSONDecodeError as error:
        raise LabError(f"{path} is not readable as a lab's state: {error}") from None
    machines = {name: ProcessId(**process) for name, process in record["machines"].items()}
    return LabPlan.from_json(record["plan"]), machines
