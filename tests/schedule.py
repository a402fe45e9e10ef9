"""Which test files share a worker of pytest-xdist, and which begin first.

A worker starts a lab, or a Ray cluster, once for all files of a group. The longest groups begin first: one that
began last would run alone at the end, while the other workers have nothing to do.
"""

from __future__ import annotations

from collections import Counter

import pytest
from xdist.scheduler import LoadFileScheduling

# By name: the files whose tests use the same lab (their LAB is equal) or the same Ray cluster.
GROUPS = {
    # First: a forked child of a process that has loaded Ray may crash in the handlers of Ray's libraries.
    "forked processes": (
        *(
            f"sandbox/jail/test_{module}.py"
            for module in (
                "seccomp",
                "landlock",
                "session",
                "program",
                "execution",
                "gvisor",
                "rootfs",
                "tree",
                "worker",
                "confine",
                "zygote",
                "kernel",
                "notebook",
                "usage",
            )
        ),
        "sandbox/api/test_sender.py",
        "sandbox/http/test_peer.py",
    ),
    "four nodes": ("lab/test_succession.py", "lab/test_release.py", "lab/test_services.py", "lab/test_sandbox.py"),
    "four nodes, too": (
        "lab/test_run.py",
        "lab/test_behaviours.py",
        "lab/test_elastic.py",
        "lab/test_gang.py",
        "lab/test_failures.py",
        "lab/test_seeing.py",
        "lab/test_reasons.py",
    ),
    "three nodes": (
        "lab/test_faults.py",
        "lab/test_bad_nodes.py",
        "lab/test_doctor.py",
        "lab/test_interactive.py",
        "lab/test_torchrun.py",
        "lab/test_placement.py",
    ),
    "two nodes": ("lab/test_resources.py", "lab/test_container.py"),
    "placement": (
        "placement/runtime/test_replicas.py",
        "placement/runtime/test_managed.py",
        "placement/runtime/test_groups.py",
        "placement/runtime/test_orphans.py",
        "placement/runtime/test_owner.py",
        "placement/runtime/test_bundles.py",
        "placement/runtime/test_lease.py",
        "placement/runtime/test_nodes.py",
        "placement/runtime/test_shutdown.py",
        "placement/test_survival.py",
    ),
}
# Groups and files that take a minute or more, the longest first; the others follow by their number of tests.
LONG = (
    "forked processes",
    "four nodes",
    "four nodes, too",
    "three nodes",
    "lab/test_requeue.py",
    "placement",
    "local/test_ray.py",
    "local/test_old_build.py",
    "local/test_unkillable.py",
    "local/test_services.py",
    "local/test_gang.py",
    "lab/test_groups.py",
    "lab/test_ordinary_users.py",
    "lab/test_hostile_user.py",
    "lab/test_group_restarts.py",
    "two nodes",
    "lab/test_lab.py",
    "local/test_succession.py",
    "lab/test_fault_phases.py",
    "lab/test_spares.py",
    "local/test_run.py",
    "lab/test_addresses.py",
    "local/test_placement.py",
    "local/test_spares.py",
    "local/test_seeing.py",
    "local/test_failures.py",
    "local/test_interactive.py",
    "torch/test_torchrun.py",
    "web/test_page.py",
    "formats/test_runs.py",
    "docs/test_quick_start.py",
    "lab/test_pgid.py",
)
_group_of = {file: name for name, files in GROUPS.items() for file in files}
_rank = {name: rank for rank, name in enumerate(LONG)}


def group_of(nodeid: str) -> str:
    """Return the group of a test, or its file below tests/ if it has none."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return _group_of.get(file, file)


def order(items: list[pytest.Item]) -> None:
    """Sort tests so that those of a group, and in it those of a file, are adjacent, and long groups come first."""
    sizes = Counter(group_of(item.nodeid) for item in items)
    places = {file: place for files in GROUPS.values() for place, file in enumerate(files)}

    def key(item: pytest.Item) -> tuple[int, int, str, int]:
        group = group_of(item.nodeid)
        file = item.nodeid.partition("::")[0].removeprefix("tests/")
        return _rank.get(group, len(_rank)), -sizes[group], group, places.get(file, 0)

    items.sort(key=key)


class GroupScheduling(LoadFileScheduling):
    """Gives a worker one group of tests after the other, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)  # type: ignore[arg-type]

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
