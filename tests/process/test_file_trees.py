"""Trees of untrusted programs are emptied, measured and removed without touching anything else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.conftest import nest

from muster.process import file_trees

DEPTH = 1500  # more than Python recurses, and more than the descriptors that a process usually may have
NOBODY = 65534

# Exchanges a directory and a link to another place as fast as it can; then prints that.
SWAP = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
top = os.open(sys.argv[1], os.O_RDONLY)
print("swapping", flush=True)
while libc.renameat2(top, b"d", top, b"link", 2) == 0:
    pass
"""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "kept").write_text("x")
    os.chmod(directory / "kept", 0o640)
    os.chmod(directory, 0o550)
    return directory


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "tree"
    directory.mkdir()
    yield directory
    subprocess.run(["rm", "-rf", directory], check=True)


def empty(directory: Path, keep: tuple[str, ...] = (), **most: int) -> bool:
    fd = os.open(directory, file_trees.OPEN_DIRECTORY)
    try:
        return file_trees.empty_directory(fd, keep, **most)
    finally:
        os.close(fd)


def test_a_directory_is_emptied_whatever_is_in_it(tree: Path, outside: Path) -> None:
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "link").symlink_to(outside)
    (tree / "file").symlink_to(outside / "kept")
    (tree / "mount").mkdir()
    os.mkfifo(tree / "a" / "fifo")
    os.chmod(tree / "a", 0)
    assert empty(tree, keep=("mount",))
    assert os.listdir(tree) == ["mount"] and (outside / "kept").read_text() == "x"
    for number in range(30):
        (tree / str(number)).touch()
    assert not empty(tree, max_entries=20)
    nest(tree, 10)
    assert not empty(tree, max_levels=9)
    assert empty(tree)


def test_a_tree_of_any_depth_is_measured_and_removed(tree: Path) -> None:
    nest(tree, DEPTH)
    fd = os.open(tree, file_trees.OPEN_DIRECTORY)
    assert file_trees.used_bytes(fd, (), DEPTH + 1) is not None
    assert file_trees.used_bytes(fd, (), DEPTH - 1) is None
    os.close(fd)
    assert file_trees.remove_tree(str(tree))
    assert not tree.exists()


def test_an_owner_s_locked_directories_are_unlocked_and_removed() -> None:
    """By their owner without privileges, as a worker is: root needs no rights."""
    code = (
        Path(file_trees.__file__).read_text()
        + """
os.makedirs("t/a/b/c")
open("t/a/b/f", "w").close()
for path, mode in (("t/a/b/c", 0o100), ("t/a/b", 0o400), ("t/a", 0), ("t", 0o300)):
    os.chmod(path, mode)
print(remove_tree(os.getcwd() + "/t"), os.listdir("."))
"""
    )
    nobody = {} if os.getuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    python = "/usr/bin/python3" if nobody else sys.executable  # this one may not be readable for other users
    with tempfile.TemporaryDirectory(dir="/tmp") as own:
        os.chmod(own, 0o777)
        done = subprocess.run([python, "-I", "-c", code], cwd=own, capture_output=True, text=True, **nobody)  # type: ignore[call-overload]
    assert done.stdout == "True []\n", done.stderr


def test_a_link_that_is_swapped_in_is_not_followed(tree: Path, outside: Path) -> None:
    """A directory that is exchanged with a link all the time, while its tree is emptied again and again."""
    for _ in range(20):
        (tree / "d").mkdir()
        os.chmod(tree / "d", 0)
        (tree / "link").symlink_to(outside)
        swapping = subprocess.Popen([sys.executable, "-I", "-c", SWAP, tree], stdout=subprocess.PIPE)
        assert swapping.stdout is not None and swapping.stdout.readline() == b"swapping\n"
        while not empty(tree):
            pass
        swapping.wait(60)
        assert os.stat(outside).st_mode & 0o7777 == 0o550
        assert os.stat(outside / "kept").st_mode & 0o7777 == 0o640
        assert os.listdir(outside) == ["kept"]


def test_only_the_tree_itself_is_removed_when_it_is_a_link(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "link").symlink_to(outside)
    assert file_trees.remove_tree(str(tmp_path / "link"))
    assert os.listdir(outside) == ["kept"]
    assert file_trees.remove_tree(str(tmp_path / "never made"))
