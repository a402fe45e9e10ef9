"""Private directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.agent import private_dir
from muster.agent.private_dir import avoid_occupied, make_private, make_private_child, remove_private_children


def test_a_new_directory_and_an_existing_private_one_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    make_private(str(path))
    make_private(str(path))
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_read_or_a_link_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    os.symlink(tmp_path / "open", tmp_path / "link")
    for name in ("open", "link"):
        with pytest.raises(PermissionError, match="remove it"):
            make_private(str(tmp_path / name))


def test_a_parent_that_another_process_removes_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make_and_remove_once(path: str) -> None:
        make_private(path)
        made.append(path)
        if len(made) == 1:
            os.rmdir(path)  # as an agent does that ends at this moment

    monkeypatch.setattr(private_dir, "make_private", make_and_remove_once)
    make_private_child(str(tmp_path / "muster-0" / "0.1.2.procs"))
    assert (tmp_path / "muster-0" / "0.1.2.procs").is_dir() and len(made) == 2
    with pytest.raises(FileExistsError):
        make_private_child(str(tmp_path / "muster-0" / "0.1.2.procs"))


def test_a_directory_that_is_free_or_own_is_used(tmp_path: Path) -> None:
    wanted = str(tmp_path / "muster-0" / "0.0.1")
    assert avoid_occupied(wanted) == wanted
    make_private(str(tmp_path / "muster-0"))
    assert avoid_occupied(wanted) == wanted


def test_an_occupied_directory_is_replaced_by_one_with_an_unpredictable_name(tmp_path: Path) -> None:
    os.symlink("/etc", tmp_path / "muster-0")
    used = [avoid_occupied(str(tmp_path / "muster-0" / name)) for name in ("0.0.1", "0.0.1.procs")]
    parents = {os.path.dirname(path) for path in used}
    assert [os.path.basename(path) for path in used] == ["0.0.1", "0.0.1.procs"] and len(parents) == 1
    (parent,) = parents
    assert os.path.dirname(parent) == str(tmp_path) and os.path.basename(parent) != "muster-0"
    make_private(parent)


def test_only_matching_entries_of_an_own_directory_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("0.1.2.ctl", "0.1.3.ctl"):
        (tmp_path / "shared" / name).mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    remove_private_children(str(tmp_path / "shared"), r"0\.\d+\.2\.ctl")
    assert (tmp_path / "shared" / "0.1.2.ctl").exists()
    monkeypatch.undo()
    remove_private_children(str(tmp_path / "shared"), r"0\.\d+\.2\.ctl")
    assert os.listdir(tmp_path / "shared") == ["0.1.3.ctl"]
    remove_private_children(str(tmp_path / "shared"), r"0\.\d+\.3\.ctl")
    assert not (tmp_path / "shared").exists()
    remove_private_children(str(tmp_path / "shared"), "x")
