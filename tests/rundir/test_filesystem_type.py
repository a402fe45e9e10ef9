"""The filesystem type of a path, from the kernel's mount table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.rundir import filesystem_type as module
from muster.rundir.filesystem_type import filesystem_type, probe_filesystem_type


def test_the_innermost_mount_decides_and_the_last_of_two_on_one_place() -> None:
    table = (
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
        "30 22 0:3 / /home rw shared:1 - nfs4 server:/home rw\n"
        "31 30 0:4 / /home/a\\040b rw - tmpfs tmpfs rw\n"
        "32 22 0:5 / /tmp rw - ext4 /dev/sdb rw\n"
        "33 22 0:6 / /tmp rw - tmpfs tmpfs rw\n"
    )
    paths = {"/homes": "ext4", "/home": "nfs4", "/home/ann": "nfs4", "/home/a b/c": "tmpfs", "/tmp/x": "tmpfs"}
    assert {path: filesystem_type(path, table) for path in paths} == paths


def test_lines_in_an_unknown_format_are_skipped() -> None:
    assert filesystem_type("/x", "") == "unknown"
    assert filesystem_type("/x", "garbled\n22 1 - ext4\n22 1 8:1 / / rw - ext4 /dev/sda rw\n") == "ext4"


def test_a_link_counts_as_the_place_it_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    target = os.path.realpath(tmp_path / "target")
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 0:3 / {target} rw - nfs4 b rw\n")
    monkeypatch.setattr(module, "MOUNT_TABLE", str(table))
    assert probe_filesystem_type(str(tmp_path / "link")) == "nfs4"
    table.unlink()
    assert probe_filesystem_type(str(tmp_path / "link")) == "unknown"
