"""Disk usage of a run by kind of file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.runs.conftest import FakeRun

from muster.runs.usage import DiskUsage, measure, part_of, total


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("", "other"),
        ("job.json", "other"),
        ("agent.pyz", "other"),
        ("job.out", "logs"),
        ("slurm-7.out", "logs"),
        ("output", "output"),
        ("output/logs/a.log", "output"),
        ("attempt-0", "other"),
        ("attempt-0/outcome", "other"),
        ("attempt-0/steps.log", "logs"),
        ("attempt-0/events-0.jsonl", "logs"),
        ("attempt-12/logs/driver.log", "logs"),
        ("attempt-0/logs/ray", "ray"),
        ("attempt-0/logs/ray/n1.tar.gz", "ray"),
        ("attempt-0/nodes/0.json", "other"),
    ],
)
def test_what_a_path_belongs_to(path: str, part: str) -> None:
    assert part_of(tuple(path.split("/")) if path else ()) == part


def test_bytes_and_inodes_are_counted_as_du_counts_them(run: FakeRun, tmp_path: Path) -> None:
    run.submitted().begins().says("x" * 100_000)
    os.mkdir(run.output_dir)
    Path(run.output_dir, "model").write_bytes(b"x" * 300_000)
    (tmp_path / "large").write_bytes(b"x" * 5_000_000)
    Path(run.output_dir, "link").symlink_to(tmp_path / "large")  # counted, not followed
    parts = measure(run)
    on_disk = os.lstat(run.attempt(0).driver_log).st_blocks * 512
    assert parts["logs"].bytes >= on_disk and parts["logs"].files == 2  # the directory, too
    assert parts["output"].files == 3 and 300_000 <= parts["output"].bytes < 5_000_000
    assert parts["ray"] == DiskUsage()
    everything = [run.root, *(os.path.join(root, n) for root, ds, fs in os.walk(run.root) for n in (*ds, *fs))]
    assert total(parts) == DiskUsage(sum(os.lstat(path).st_blocks * 512 for path in everything), len(everything))
