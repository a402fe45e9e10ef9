"""Resources of a step on a node, and the part declared to Ray."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from muster.agent.ray import resources
from muster.agent.ray.resources import (
    MB,
    NodeResources,
    ResourceMismatch,
    ResourceShare,
    memory_limit,
    requested_gpus,
    share,
    visible_gpus,
)

GB = 1024 * MB
FOUND = NodeResources(cpus=8, confined=True, gpus=4, memory=100 * GB, memory_limited=True, shm_free=200 * GB)


def test_the_object_store_takes_its_part_of_the_job_s_memory_and_the_rest_is_for_workers() -> None:
    assert share(FOUND, None, None, None) == ResourceShare(8, None, 30 * GB, 70 * GB)


def test_the_object_store_never_takes_more_than_the_shared_memory_that_is_free() -> None:
    assert share(replace(FOUND, shm_free=10 * GB), None, None, None).store == 9 * GB


def test_where_the_machine_s_memory_is_the_limit_ray_s_own_figure_for_workers_stands() -> None:
    assert share(replace(FOUND, memory_limited=False), None, None, None).memory is None


def test_virtual_nodes_of_one_machine_divide_its_memory() -> None:
    assert share(replace(FOUND, memory=12 * GB), 2, None, None, parts=3) == ResourceShare(
        2, None, int(4 * GB * 0.3), 4 * GB - int(4 * GB * 0.3)
    )


def test_a_store_that_the_user_chose_is_used_and_one_that_does_not_fit_is_warned_about() -> None:
    chosen = share(replace(FOUND, shm_free=64 * MB), None, None, 5 * GB)
    assert chosen.store == 5 * GB
    assert "64 MB free" in (resources.object_store_warning(replace(FOUND, shm_free=64 * MB), chosen) or "")
    assert resources.object_store_warning(FOUND, chosen) is None


def test_fewer_cpus_than_asked_for_are_refused_with_both_figures() -> None:
    with pytest.raises(ResourceMismatch, match="may use 8 CPUs, 16 were asked for"):
        share(FOUND, 16, None, None)
    assert share(FOUND, 4, None, None).cpus == 4


def test_cpus_that_slurm_declares_without_confinement_are_believed() -> None:
    assert share(replace(FOUND, cpus=2, confined=False), 8, None, None).cpus == 8


@pytest.mark.parametrize("found", [0, 2, 8])
def test_another_number_of_gpus_than_asked_for_is_refused_with_both_figures(found: int) -> None:
    with pytest.raises(ResourceMismatch, match=f"has {found} GPUs, 4 were asked for"):
        share(replace(FOUND, gpus=found), None, 4, None)
    assert share(FOUND, None, 4, None).gpus == 4


@pytest.mark.parametrize(
    ("gpus", "gres", "wanted"),
    [
        (2, "gpu:4", 2),
        (None, None, None),
        (None, "gpu", 1),
        (None, "gpu:8", 8),
        (None, "gpu:a100:4", 4),
        (None, "nvme:1", None),
        (None, "gpu:a100:2,gpu:v100:1,nvme", 3),
        (None, "gpu:4(IDX:0-3)", 4),
    ],
)
def test_gpus_are_asked_for_by_either_way(gpus: int | None, gres: str | None, wanted: int | None) -> None:
    assert requested_gpus(gpus, gres) == wanted


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, 2),
        ({"SLURM_JOB_ID": "1"}, 0),
        ({}, None),
    ],
)
def test_gpus_are_those_that_processes_will_see(env: dict[str, str], count: int | None) -> None:
    assert visible_gpus(env) == count


def test_the_memory_limit_is_the_least_of_slurm_s_and_of_every_cgroup_above(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/slurm/job_1/step_0\n")
    for path, limit in (("slurm", "max"), ("slurm/job_1", str(3 * GB)), ("slurm/job_1/step_0", str(5 * GB))):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / "memory.max").write_text(limit + "\n")
    assert memory_limit({}, str(tmp_path), str(own)) == 3 * GB
    assert memory_limit({"SLURM_MEM_PER_NODE": "1024"}, str(tmp_path), str(own)) == GB
    assert memory_limit({"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "4"}, str(tmp_path), str(own)) == 2 * GB


def test_the_older_cgroups_are_read_too(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("9:freezer:/x\n4:memory:/slurm\n0::/ignored\n")
    (tmp_path / "memory" / "slurm").mkdir(parents=True)
    (tmp_path / "memory" / "slurm" / "memory.limit_in_bytes").write_text(f"{2 * GB}\n")
    assert memory_limit({}, str(tmp_path), str(own)) == 2 * GB


def test_without_any_limit_there_is_none(tmp_path: Path) -> None:
    assert memory_limit({}, str(tmp_path), str(tmp_path / "none")) > 1 << 60


def test_the_cpus_are_slurm_s_figure_or_those_this_process_may_use() -> None:
    here = len(os.sched_getaffinity(0))
    assert resources.probe({}).cpus == here
    found = resources.probe({"SLURM_CPUS_ON_NODE": "4096"})
    assert found.cpus == (here if here < (os.cpu_count() or 1) else 4096)
    assert found.confined
