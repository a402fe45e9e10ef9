"""Cheap checks before every run: warn about paths that all nodes need but probably do not share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath

from muster.doctor.check_result import CheckResult
from muster.launch.plan import Prepared
from muster.rundir.filesystem_type import probe_filesystem_type

NODE_LOCAL_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")
MEMORY_FILESYSTEMS = frozenset(["tmpfs", "ramfs", "devtmpfs"])
NETWORK_FILESYSTEMS = (
    *("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse."),
    *("wekafs", "panfs", "pvfs2", "cifs", "smb", "9p"),
)


def check_reach(check: str, path: str, filesystem: str) -> CheckResult:
    """Return whether other nodes probably see this path, judged only by its location and filesystem type."""
    if not filesystem.startswith(NETWORK_FILESYSTEMS):
        local = next((local for local in NODE_LOCAL_DIRECTORIES if PurePath(path).is_relative_to(local)), None)
        where = f"in {local}" if local else f"on a {filesystem}" if filesystem in MEMORY_FILESYSTEMS else ""
        if where:
            what = f"the {check.replace('-', ' ')} {path} is {where}, which is usually local to each node"
            option = {"runs-directory": "--runs-dir", "working-directory": "--workdir"}[check]
            return CheckResult(check, "warn", what, f"choose one that all nodes share with {option}")
    return CheckResult(check, "pass", f"{path} ({filesystem})")


def warnings(prepared: Prepared, env: Mapping[str, str]) -> list[str]:
    """Return a line for each probable problem; empty for a run on one machine."""
    place = prepared.target
    if place.kind == "local" or (place.kind == "allocation" and place.nodes == 1):
        return []
    paths = {"runs-directory": os.path.dirname(prepared.run.root), "working-directory": prepared.workdir}
    shared = env.get("MUSTER_LAB_DIR")  # all nodes of the lab share it, on a filesystem in memory or in /tmp
    results = [
        check_reach(check, path, probe_filesystem_type(path))
        for check, path in paths.items()
        if not (shared and PurePath(path).is_relative_to(os.path.realpath(shared)))
    ]
    return [f"{result.what}; {result.advice}" for result in results if result.state == "warn"]
