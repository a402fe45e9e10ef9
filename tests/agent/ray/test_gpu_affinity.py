"""The file that maps GPUs to CPUs, from recorded outputs of `nvidia-smi topo -m`."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from muster.agent.ray.gpu_affinity import AffinityFile, affinity_lines, cpus_of_numa_node

# Driver 590, B300; the header is underlined. Columns of six GPUs and eight network cards are left out.
B300 = """\
\t\x1b[4mGPU0\tGPU4\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPXB\t0-63,128-191\t0\t\tN/A
GPU4\tNV18\t X \tSYS\t64-127,192-255\t1\t\tN/A
NIC0\tPXB\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
# A node with memory of its GPUs as NUMA nodes of their own: the first one is that of the CPUs.
GRACE = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\t0-71\t0,2-17\t\t2
GPU1\tNV18\t X \t72-143\t1,18-33\t\t18
"""
OLD_DRIVER = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tSYS\t0-23\nGPU1\tSYS\t X \tN/A\n"
NUMA = {0: "0-63,128-191", 1: "64-127,192-255"}


def test_each_gpu_has_the_cpus_of_its_numa_node() -> None:
    assert affinity_lines(B300, NUMA.get) == ["0:0-63,128-191", "4:64-127,192-255"]
    assert affinity_lines(GRACE, {0: "0-71", 1: "72-143"}.get) == ["0:0-71", "1:72-143"]


def test_without_a_numa_node_the_cpus_are_those_that_nvidia_smi_lists() -> None:
    assert affinity_lines(GRACE, {}.get) == ["0:0-71", "1:72-143"]
    assert affinity_lines(OLD_DRIVER, NUMA.get) == ["0:0-23"]
    assert affinity_lines(B300.replace("\t1\t\tN/A", "\tN/A\t\tN/A"), NUMA.get)[1] == "4:64-127,192-255"


@pytest.mark.parametrize("listing", ["", "No devices were found\n", "GPU0\t X \t0-3\t0\n"])
def test_a_listing_without_a_table_has_no_lines(listing: str) -> None:
    assert affinity_lines(listing, NUMA.get) == []


def test_the_cpus_of_a_numa_node_are_read_from_sysfs(tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "cpulist").write_text("8-15\n")
    assert cpus_of_numa_node(1, str(tmp_path)) == "8-15"
    assert cpus_of_numa_node(0, str(tmp_path)) is None


def nvidia_smi(directory: Path, script: str) -> dict[str, str]:
    """An environment whose nvidia-smi is this shell script."""
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


def test_the_file_exists_while_ray_runs(tmp_path: Path) -> None:
    (tmp_path / "listing").write_text(OLD_DRIVER)
    path = tmp_path / "affinity"
    path.symlink_to(tmp_path / "elsewhere")  # it is replaced, not followed
    file = AffinityFile(str(path), nvidia_smi(tmp_path, f'[ "$*" = "topo -m" ] && cat {tmp_path}/listing'))
    assert file.write() is None
    assert path.read_text() == "0:0-23\n" and stat.S_IMODE(path.lstat().st_mode) == 0o644
    assert not (tmp_path / "elsewhere").exists()
    file.remove()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["listing", "nvidia-smi"]


@pytest.mark.parametrize(("script", "reason"), [("exit 9", "exit code 9"), ("cat listing", "directory")])
def test_what_prevents_the_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listing").write_text(OLD_DRIVER)
    note = AffinityFile(str(tmp_path / "missing" / "affinity"), nvidia_smi(tmp_path, script)).write()
    assert note is not None and "is not written" in note and reason in note


def test_a_node_without_nvidia_smi_is_reported_and_another_s_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "affinity"
    path.write_text("0:0-3\n")
    file = AffinityFile(str(path), {"PATH": str(tmp_path)})
    note = file.write()
    assert note is not None and "nvidia-smi is not installed" in note
    file.remove()
    assert path.exists()


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    assert AffinityFile(None, {"PATH": str(tmp_path)}).write() is None
