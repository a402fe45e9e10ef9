"""The confinement of a worker: what its plan implies, and the limits that a process has afterwards."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.forked import value_of

from muster.sandbox.jail import confine
from muster.sandbox.jail.confine import ConfinementPlan


def plan(profile: str, **changed: Any) -> ConfinementPlan:
    values = {
        "read_only": ["/tmp/env/lib", "/srv/data"],
        "memory_mb": 9000,
        "processes": 16,
        "open_files": 64,
        "file_mb": 8,
        "scratch_mb": 32,
        "network": False,
        "counts_processes": False,
        "directory": "/scratch/w1",
    }
    return ConfinementPlan.from_json({"profile": profile, **values, **changed})


@pytest.mark.parametrize(
    ("profile", "workspace", "home", "temporary"),
    [
        ("root", None, "/sandbox", "/tmp"),
        ("user", "/scratch/shared", "/sandbox", "/tmp"),
        ("floor", None, "/scratch/w1/home", "/scratch/w1/tmp"),
        ("process", "/scratch/shared", "/scratch/shared/home", "/scratch/shared/tmp"),
    ],
)
def test_where_programs_write(profile: str, workspace: str | None, home: str, temporary: str) -> None:
    made = plan(profile, workspace=workspace)
    assert (made.home, made.temporary) == (home, temporary)


def test_only_a_scratch_of_its_own_filesystem_is_limited_by_the_kernel() -> None:
    assert not plan("root").is_on_disk and not plan("user").is_on_disk
    assert plan("root", workspace="/w").is_on_disk and plan("floor").is_on_disk and plan("process").is_on_disk


@pytest.mark.parametrize(
    ("profile", "user", "workspace", "owns"),
    [
        ("root", 7, "/w", True),
        ("user", None, None, True),
        ("floor", 7, None, True),
        ("floor", 7, "/w", False),  # another worker of the workspace has the same user
        ("floor", None, None, False),
        ("process", None, None, False),
    ],
)
def test_whose_processes_programs_can_signal(profile: str, user: int | None, workspace: str | None, owns: bool) -> None:
    assert plan(profile, user=user, workspace=workspace).owns_processes == owns


def test_directories_are_emptied_between_programs_except_for_mounts_and_workspaces() -> None:
    assert plan("root").scratch == {"/sandbox": [], "/tmp": ["env"], "/dev/shm": [], "/mnt": []}
    assert plan("root", workspace="/w", read_only=["/mnt/data"]).scratch == {"/dev/shm": []}
    assert plan("floor").scratch == {"/scratch/w1/home": [], "/scratch/w1/tmp": []}
    assert plan("floor", workspace="/w").scratch == {}
    beside = plan("process").scratch
    assert beside == {"/scratch/w1/home": [], "/scratch/w1/tmp": [], "/scratch/w1": ["home", "tmp"]}
    assert "/scratch/w1" not in plan("process", user=7).scratch


def test_read_only_mounts_do_not_count_as_written() -> None:
    assert plan("root").written == {"/sandbox": [], "/tmp": ["env"]}
    assert plan("floor", workspace="/w").written == {"/w/home": [], "/w/tmp": []}


def test_a_cgroup_is_entered_by_thread_or_by_process(tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
    (tmp_path / "v1" / "tasks").touch()
    confine.enter_namespaces(plan("floor", cgroups=[str(tmp_path / "v1"), str(tmp_path / "v2")]))
    assert (tmp_path / "v1" / "tasks").read_text() == "0" and not (tmp_path / "v1" / "cgroup.procs").exists()
    assert (tmp_path / "v2" / "cgroup.procs").read_text() == "0"


def test_a_confined_process_has_its_limits_and_no_way_to_more(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()

    def look() -> dict[str, Any]:
        confinement = confine.confine(plan("process", directory=str(tmp_path), counts_processes=True))
        kinds = ("CORE", "DATA", "FSIZE", "NOFILE", "NPROC")
        limits = {kind: resource.getrlimit(getattr(resource, f"RLIMIT_{kind}")) for kind in kinds}
        status = Path("/proc/self/status").read_text().split("\n")
        wanted = ("NoNewPrivs", "Seccomp", "CapEff")
        found = dict(line.split(":", 1) for line in status if line.split(":")[0] in wanted)
        try:
            os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))
            changed = True
        except OSError:
            changed = False
        state = {name: value.strip().lstrip("0") for name, value in found.items()}
        return {"limits": limits, "cwd": os.getcwd(), "proc": confinement.proc, "changed": changed, **state}

    found = value_of(look)
    assert found.pop("limits") == {
        "CORE": [0, 0],
        "DATA": [9000 << 20, resource.getrlimit(resource.RLIMIT_DATA)[1]],
        "FSIZE": [8 << 20] * 2,
        "NOFILE": [64, 64],
        "NPROC": [17, 17],
    }
    expected = {"cwd": str(tmp_path / "home"), "proc": False, "changed": False}
    assert found == {**expected, "NoNewPrivs": "1", "Seccomp": "2", "CapEff": ""}


def test_a_limit_never_exceeds_the_one_that_the_process_had() -> None:
    def limited() -> list[tuple[int, int]]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        confine._limit(plan("process", open_files=64))
        processes = resource.getrlimit(resource.RLIMIT_NPROC)
        return [resource.getrlimit(resource.RLIMIT_NOFILE), processes]

    before = list(resource.getrlimit(resource.RLIMIT_NPROC))
    assert value_of(limited) == [[32, 32], before]  # processes are not counted per worker here


def test_a_worker_in_gvisor_has_a_private_system_without_namespaces_of_the_host() -> None:
    made = plan("gvisor", user=7)
    assert (made.home, made.temporary) == ("/sandbox", "/tmp")
    assert made.owns_processes and not made.forbids_tcp and not made.has_namespaces
    assert made.scratch == plan("root").scratch
    assert made.is_on_disk and set(made.written) == set(made.scratch)  # each has the whole size: checks add them up
