"""The nodes' cgroups: each has a directory of its own in the v1 freezer, which it sees as the whole freezer.

Where slurmds share one hierarchy it depends on how Slurm was built whether a step's cgroup is one for all nodes (then
the end of a step on one node would kill it on the others), and a node that died would leave its cgroups to the next.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from muster.lab.errors import LabError, LabUnavailable
from muster.lab.plan import LabPlan

FREEZER = Path("/sys/fs/cgroup/freezer")
_STEP_S = 0.02


def check_available() -> None:
    """Raise if this machine has no cgroup v1 freezer for Slurm to track processes with."""
    if not (FREEZER / "cgroup.procs").exists() or not os.access(FREEZER, os.W_OK):
        raise LabUnavailable(
            f"no writable cgroup v1 freezer at {FREEZER}, which --proctrack cgroup needs here; use --proctrack pgid"
        )


def root(plan: LabPlan) -> Path:
    """The directory that holds the lab's cgroups."""
    return FREEZER / plan.mark


def of_machine(plan: LabPlan, name: str) -> Path | None:
    """A machine's own cgroup, or None where the lab does without."""
    return root(plan) / name if plan.proctrack == "cgroup" else None


def make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)


def remove(directory: Path, deadline_s: float = 10.0) -> None:
    """Remove a cgroup and all below; waits until the last of their processes, killed before, are gone."""
    deadline = time.monotonic() + deadline_s
    while directory.exists():
        # A frozen process cannot even die.
        for state in directory.rglob("freezer.state"):
            with contextlib.suppress(FileNotFoundError):
                state.write_text("THAWED")
        left = [path for path in _bottom_up(directory) if not _rmdir(path)]
        if left and time.monotonic() > deadline:
            raise LabError(f"cgroup {left[0]} still has processes {(left[0] / 'cgroup.procs').read_text().split()}")
        if left:
            time.sleep(_STEP_S)


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
