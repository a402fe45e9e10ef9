"""The root filesystem of a worker: what is in it, what can be written, and where read-only paths are mounted."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.forked import needs_root, value_of

from muster.sandbox.jail import kernel, rootfs
from muster.sandbox.jail.rootfs import RootSpec, shown_in


def test_the_names_below_which_read_only_paths_are_mounted() -> None:
    paths = ["/tmp/env/lib", "/tmp/env/bin", "/tmp/file", "/tmpfs/x", "/srv/data", "/tmp"]
    assert shown_in("/tmp", paths) == ["env", "file"]
    assert shown_in("/sandbox", paths) == []


# -- mount points in the scratch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_directory", [True, False])
def test_a_mount_point_is_created_or_used_again(tmp_path: Path, is_directory: bool) -> None:
    for _ in range(2):
        fd = rootfs._mount_point(str(tmp_path), "point", is_directory)
        assert stat.S_ISDIR(os.fstat(fd).st_mode) == is_directory
        assert os.fstat(fd).st_ino == (tmp_path / "point").stat().st_ino
        os.close(fd)


@pytest.mark.parametrize(("is_directory", "kind"), [(True, "directory"), (False, "file")])
def test_a_mount_point_is_not_what_a_program_left_in_its_place(tmp_path: Path, is_directory: bool, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a file").write_text("")
    (tmp_path / "link to directory").symlink_to("elsewhere")
    (tmp_path / "link to file").symlink_to("a file")
    wrong = "a file" if is_directory else "elsewhere"
    before = len(os.listdir("/proc/self/fd"))
    for name in (wrong, "link to directory", "link to file"):
        with pytest.raises(OSError, match=f"a program left {name} in the workspace, where a read-only {kind}"):
            rootfs._mount_point(str(tmp_path), name, is_directory)
    assert len(os.listdir("/proc/self/fd")) == before
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_scratch_that_is_a_link_has_no_mount_points(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "link").symlink_to("scratch")
    with pytest.raises(OSError):
        rootfs._mount_point(str(tmp_path / "link"), "point", True)
    assert list((tmp_path / "scratch").iterdir()) == []


# -- the whole ------------------------------------------------------------------------------------------------------


def can_write(directory: str) -> bool:
    try:
        Path(directory, "written").write_text("x")
    except OSError:
        return False
    return True


def built(tmp_path: Path, look: Any, **changed: Any) -> Any:
    """Return what `look` returns in a filesystem that was built for user 4711."""
    (tmp_path / "new").mkdir()
    values: dict[str, Any] = {"read_only": [], "scratch_mb": 4, "workspace": None, "network": False}
    root = RootSpec(directory=str(tmp_path / "new"), owner=(4711, 4711), **{**values, **changed})

    def enter() -> Any:
        kernel.unshare(kernel.CLONE_NEWNS)
        return [rootfs.build(root), look()]

    _, found = value_of(enter)
    return found


@needs_root
def test_a_worker_sees_the_system_its_scratch_and_nothing_else_of_the_host(tmp_path: Path) -> None:
    def look() -> dict[str, Any]:
        return {
            "top": sorted(os.listdir("/")),
            "users": [line.split(":")[:3:2] for line in Path("/etc/passwd").read_text().splitlines()],
            "hosts": Path("/etc/hosts").read_text(),
            "secret": os.path.exists("/etc/shadow"),
            "test": os.path.exists(tmp_path),
            "owners": [os.stat(path).st_uid for path in rootfs.SCRATCH],
            "devices": sorted(set(rootfs.DEVICES) & set(os.listdir("/dev"))),
            "writable": [path for path in ("/", "/usr", "/etc", "/dev", "/mnt", *rootfs.SCRATCH) if can_write(path)],
        }

    found = built(tmp_path, look)
    system = {path.split("/")[1] for path in rootfs.SYSTEM if os.path.exists(path)}
    assert set(found["top"]) == system | {"etc", "dev", "mnt", "proc", "sandbox", "tmp"}
    assert found["users"] == [["root", "0"], ["sandbox", "4711"]]
    assert found["hosts"] == "127.0.0.1 localhost sandbox\n::1 localhost\n"
    assert (found["secret"], found["test"]) == (False, False)
    assert found["owners"] == [4711] * 3 and found["devices"] == sorted(rootfs.DEVICES)
    assert found["writable"] == ["/mnt", *rootfs.SCRATCH]


@needs_root
def test_the_scratch_has_a_size(tmp_path: Path) -> None:
    def look() -> list[int]:
        sizes = [os.statvfs(path) for path in rootfs.SCRATCH]
        return [size.f_blocks * size.f_frsize >> 20 for size in sizes]

    assert built(tmp_path, look, scratch_mb=3) == [3, 3, 3]


@needs_root
def test_a_workspace_is_used_in_place_of_a_fresh_scratch(tmp_path: Path) -> None:
    for name in ("home", "tmp"):
        (tmp_path / "workspace" / name).mkdir(parents=True)
        (tmp_path / "workspace" / name / "left").write_text(name)

    def look() -> list[str]:
        Path("/sandbox/new").write_text("made")
        return [Path(path, "left").read_text() for path in ("/sandbox", "/tmp")]

    assert built(tmp_path, look, workspace=str(tmp_path / "workspace")) == ["home", "tmp"]
    assert (tmp_path / "workspace" / "home" / "new").read_text() == "made"


@needs_root
def test_read_only_paths_are_shown_where_they_are_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("shown")
    (tmp_path / "hidden").write_text("hidden")

    def look() -> list[Any]:
        place = tmp_path / "shown"
        return [(place / "file").read_text(), (tmp_path / "hidden").exists(), can_write(str(place))]

    assert built(tmp_path, look, read_only=[str(tmp_path / "shown")]) == ["shown", False, False]
