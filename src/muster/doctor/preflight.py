"""The checks that cost nothing, made before every run: does a path that all nodes need lie where only one has it?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath

from muster.doctor.check_result import CheckResult
from muster.doctor.node.mounts import probe_filesystem_type
from muster.launch.run_writer import Prepared

OWN_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")
IN_MEMORY = frozenset(["tmpfs", "ramfs", "devtmpfs"])
ON_THE_NETWORK = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse.", "wekafs", "panfs", "pvfs2", "cifs", "smb", "9p")


def check_reach(check: str, path: str, filesystem: str) -> CheckResult:
    """Whether other nodes are likely to see this path, by its place and its kind of filesystem alone."""
    if not filesystem.startswith(ON_THE_NETWORK):
        own = next((own for own in OWN_DIRECTORIES if PurePath(path).is_relative_to(own)), None)
        where = f"in {own}" if own else f"on a {filesystem}" if filesystem in IN_MEMORY else ""
        if where:
            what = f"the {check.replace('-', ' ')} {path} is {where}, which every node usually has of its own"
            option = {"runs-directory": "--runs-dir", "working-directory": "--workdir"}[check]
            return CheckResult(check, "warn", what, f"choose one that all nodes share with {option}")
    return CheckResult(check, "pass", f"{path} ({filesystem})")


def warnings(prepared: Prepared, env: Mapping[str, str]) -> list[str]:
    """A line for each thing that is likely to go wrong; empty for a run on one machine."""
    place = prepared.place
    if place.kind == "local" or (place.kind == "allocation" and place.nodes == 1):
        return []
    paths = {"runs-directory": os.path.dirname(prepared.run.root), "working-directory": prepared.workdir}
    shared = env.get("MUSTER_LAB_SHARED")  # the lab's own, wherever its nodes are told that it is
    results = [
        check_reach(check, path, probe_filesystem_type(path))
        for check, path in paths.items()
        if not (shared and PurePath(path).is_relative_to(os.path.realpath(shared)))
    ]
    return [f"{result.what}; {result.advice}" for result in results if result.state == "warn"]
