"""The nodes' cgroups: each node has a directory in the v1 freezer, which it sees as the root of the freezer.

If slurmds shared one hierarchy, some builds of Slurm would use one cgroup per step for all nodes (the end of a step on
one node would kill it on the others), and a dead node would leave its cgroups to its successor.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from muster.lab.errors import LabError, LabUnavailable
from muster.lab.plan import LabPlan

FREEZER = Path("/sys/fs/cgroup/freezer")
REMOVE_POLL_S = 0.02


def check_available() -> None:
    """Raise if this machine has no cgroup v1 freezer for Slurm to track processes with."""
    if not (FREEZER / "cgroup.procs").exists() or not os.access(FREEZER, os.W_OK):
        raise LabUnavailable(
            f"no writable cgroup v1 freezer at {FREEZER}, which --proctrack cgroup needs here; use --proctrack pgid"
        )


def root(plan: LabPlan) -> Path:
    """Return the directory of the lab's cgroups."""
    return FREEZER / plan.mark


def of_machine(plan: LabPlan, name: str) -> Path | None:
    """Return a machine's cgroup, or None if the lab uses no cgroups."""
    return root(plan) / name if plan.proctrack == "cgroup" else None


def make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)


def remove(directory: Path, deadline_s: float = 60.0) -> None:
    """Remove a cgroup with its children; wait until their processes, killed before, are gone."""
    deadline = time.monotonic() + deadline_s
    while directory.exists():
        # A frozen process does not react to SIGKILL.
        for state in directory.rglob("freezer.state"):
            with contextlib.suppress(FileNotFoundError):
                state.write_text("THAWED")
        left = [path for path in _bottom_up(directory) if not _rmdir(path)]
        if left and time.monotonic() > deadline:
            raise LabError(f"cgroup {left[0]} still has processes {(left[0] / 'cgroup.procs').read_text().split()}")
        if left:
            time.sleep(REMOVE_POLL_S)


def _bottom_up(directory: Path) -> list[Path]:
    return [Path(path) for path, _, _ in os.walk(directory, topdown=False)]


def _rmdir(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
