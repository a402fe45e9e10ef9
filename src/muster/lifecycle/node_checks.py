"""The built-in checks of nodes: their names, levels, deadlines and thresholds, and which of them a job selects. Pure.

`muster.agent.health.checks` implements them. The job's model, the agents and the documentation read this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NO_CHECKS = "none"
LEVELS = ("basic", "standard", "all")  # each contains the ones before
BYTES, SECONDS, ERRORS, GIGABITS, MEDIAN = "bytes", "s", "uncorrected errors", "Gb/s", "of the nodes' median"
MIB = 1 << 20


@dataclass(frozen=True)
class NodeCheck:
    """A check of a node. It fails when its deadline passes, or when `fails_when` is true."""

    name: str
    level: str
    deadline: float  # in seconds
    fails_when: str  # for people; {} is the threshold
    threshold: float | None = None  # the default; None: the check has no threshold
    unit: str = ""  # of the threshold

    @property
    def compared(self) -> bool:
        """Whether it measures the node, and the leader compares the nodes; else it has a verdict of its own."""
        return self.unit == MEDIAN

    @property
    def repeated(self) -> bool:
        """Whether it also runs on waiting spares and after failures; else only before the job."""
        return self.level != LEVELS[-1]


NODE_CHECKS = (
    NodeCheck("disk", "basic", 10, "less than {} or no inode is free in the directory of temporary files", MIB, BYTES),
    NodeCheck("memory", "basic", 10, "less than {} of memory is available", 64 * MIB, BYTES),
    NodeCheck("gpu-count", "basic", 60, "`nvidia-smi -L` lists fewer GPUs than Slurm has allocated"),
    NodeCheck("shm", "standard", 10, "less than {} is free in `/dev/shm`", 64 * MIB, BYTES),
    NodeCheck("local-storage", "standard", 30, "4 MiB of temporary files take more than {}, or differ", 5, SECONDS),
    NodeCheck("shared-storage", "standard", 30, "4 MiB in the run directory take more than {}, or differ", 10, SECONDS),
    NodeCheck("clock", "standard", 10, "it differs by more than {} from the run directory's server", 5, SECONDS),
    NodeCheck("nic", "standard", 10, "an InfiniBand port with a link is not active, or has less than {}", 0, GIGABITS),
    NodeCheck("gpu-ecc", "standard", 30, "a GPU has more than {} since its reset, or a repair is due", 0, ERRORS),
    NodeCheck("gpu-xid", "standard", 10, "the kernel log has an Xid of damaged hardware of the last hour"),
    NodeCheck("gpu-nvlink", "standard", 30, "a GPU has fewer active NVLinks than another one of the node"),
    NodeCheck("gpu-clocks", "standard", 30, "heat or power makes the hardware slow down a GPU"),
    NodeCheck("gpu-memory", "standard", 30, "more than {} of a GPU is in use, while the job is not", 2048 * MIB, BYTES),
    NodeCheck("leftovers", "all", 10, "processes of the user's other Slurm jobs run on the node"),
    NodeCheck("cpu-speed", "all", 30, "it computes with less than {}", 0.7, MEDIAN),
    NodeCheck("memory-speed", "all", 30, "it copies memory with less than {}", 0.7, MEDIAN),
    NodeCheck("dcgm", "all", 180, "`dcgmi diag -r 1` reports a failure"),
)
BY_NAME = {check.name: check for check in NODE_CHECKS}


def selected_checks(level: str, changes: Mapping[str, bool | float]) -> dict[str, float | None]:
    """Return the names of the checks that a job selects, with their thresholds.

    `changes`: by name, True or False to add or leave out a check, or a threshold, which also adds it.

    >>> selected_checks("basic", {"memory": False, "clock": 2.0})
    {'disk': 1048576.0, 'gpu-count': None, 'clock': 2.0}
    """
    chosen: dict[str, float | None] = {}
    for check in NODE_CHECKS:
        in_level = level != NO_CHECKS and LEVELS.index(check.level) <= LEVELS.index(level)
        change = changes.get(check.name, in_level)
        if isinstance(change, bool):
            if change:
                chosen[check.name] = None if check.threshold is None else float(check.threshold)
        else:
            chosen[check.name] = float(change)
    return chosen


def repeated_checks(selected: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return those of the selected checks that also run on waiting spares and after failures."""
    return {name: threshold for name, threshold in selected.items() if BY_NAME[name].repeated}
