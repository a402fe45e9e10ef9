"""The filesystem with faults, on which other tests run, passes operations through and injects each fault."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.filesystems.faulty_filesystem import FaultyFilesystem, faulty_filesystem, why_no_fuse

pytestmark = pytest.mark.skipif(why_no_fuse() is not None, reason=str(why_no_fuse()))


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[FaultyFilesystem]:
    with faulty_filesystem(tmp_path / "filesystem") as filesystem:
        yield filesystem


def test_files_directories_links_and_renames_pass_through(filesystem: FaultyFilesystem) -> None:
    root = filesystem.path
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_text("text" * 100_000)
    os.link(root / "a" / "file", root / "second")
    os.symlink("a/file", root / "symbolic")
    os.rename(root / "a", root / "renamed")
    assert sorted(os.listdir(root)) == ["renamed", "second", "symbolic"]
    assert (root / "second").read_text() == "text" * 100_000 and (root / "second").stat().st_nlink == 2
    assert os.readlink(root / "symbolic") == "a/file" and (root / "renamed" / "b").is_dir()
    with open(root / "second", "a") as one, open(root / "second", "a") as two:
        for file in (one, two, one):
            file.write("+")
            file.flush()
    assert (filesystem.behind / "renamed" / "file").read_text() == "text" * 100_000 + "+++"
    os.truncate(root / "second", 3)
    os.chmod(root / "second", 0o600)
    os.utime(root / "second", (5, 7))
    found = (filesystem.behind / "second").stat()
    assert (found.st_size, found.st_mode & 0o777, found.st_mtime) == (3, 0o600, 7)
    os.unlink(root / "second")
    os.rmdir(root / "renamed" / "b")
    assert sorted(os.listdir(filesystem.behind)) == ["renamed", "symbolic"]
    with pytest.raises(FileExistsError):
        os.open(root / "renamed" / "file", os.O_CREAT | os.O_EXCL)
    assert subprocess.run([sys.executable, "-c", "print(1)"], cwd=root / "renamed", capture_output=True).stdout


@pytest.mark.parametrize("kind", ["EIO", "EACCES", "ENOTCONN"])
def test_an_error_strikes_the_matching_operations_as_often_as_wanted(filesystem: FaultyFilesystem, kind: str) -> None:
    (filesystem.path / "file").write_text("text")
    filesystem.inject(kind, "open", r".*file", count=2, skip=1)
    answers = []
    for _ in range(4):
        try:
            answers.append((filesystem.path / "file").read_text())
        except OSError as error:
            answers.append(errno.errorcode[error.errno])
    assert answers == ["text", kind, kind, "text"] and filesystem.hits() == [2]


def test_the_kernel_itself_repeats_an_operation_after_one_stale_answer(filesystem: FaultyFilesystem) -> None:
    (filesystem.path / "file").write_text("text")
    filesystem.inject("ESTALE", "open", count=1)
    assert (filesystem.path / "file").read_text() == "text"
    filesystem.inject("ESTALE", "open", count=2)
    with pytest.raises(OSError, match="Stale"):
        (filesystem.path / "file").read_text()


def test_a_full_filesystem_refuses_what_needs_space_and_nothing_else(filesystem: FaultyFilesystem) -> None:
    (filesystem.path / "file").write_text("text")
    filesystem.inject("full")
    with pytest.raises(OSError, match="No space left"):
        (filesystem.path / "new").write_text("text")
    assert (filesystem.path / "file").read_text() == "text"
    os.unlink(filesystem.path / "file")
    filesystem.clear()
    (filesystem.path / "new").write_text("text")


def test_a_hang_ends_when_it_is_over_and_does_not_delay_other_files(filesystem: FaultyFilesystem) -> None:
    for name in ("slow", "quick"):
        (filesystem.path / name).write_text(name)
    filesystem.inject("hang", "open", "slow")
    reader = threading.Thread(target=(filesystem.path / "slow").read_text)
    reader.start()
    deadline = time.monotonic() + 60
    while filesystem.hits() == [0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (filesystem.path / "quick").read_text() == "quick" and reader.is_alive()
    filesystem.clear()
    reader.join(60)
    assert not reader.is_alive()


def test_a_hang_of_some_seconds_ends_without_help(filesystem: FaultyFilesystem) -> None:
    (filesystem.path / "file").write_text("text")
    filesystem.inject("hang", "getattr|lookup|open", seconds=0.5)
    began = time.monotonic()
    assert (filesystem.path / "file").read_text() == "text"
    assert time.monotonic() - began >= 0.5


def test_a_stale_client_keeps_seeing_that_a_file_was_absent(filesystem: FaultyFilesystem) -> None:
    filesystem.inject("stale", seconds=3600)
    assert not (filesystem.path / "new").exists()
    (filesystem.behind / "new").write_text("text")
    assert not (filesystem.path / "new").exists()
    assert os.listdir(filesystem.path) == ["new"]  # a listing is current


def test_operations_are_recorded_with_the_program_that_called(filesystem: FaultyFilesystem) -> None:
    filesystem.record()
    subprocess.run(["touch", str(filesystem.path / "file")], check=True, env={"PATH": os.environ["PATH"]})
    subprocess.run(["cat", str(filesystem.path / "file")], check=True, env={"MUSTER_RANK": "3", **os.environ})
    found = [(each.name, each.program.split("/")[0]) for each in filesystem.operations() if each.path == "file"]
    assert ("create", "touch ") in found and ("open", "rank 3: cat ") in found


def test_operations_are_recorded_with_the_thread_that_called(filesystem: FaultyFilesystem) -> None:
    filesystem.record()
    writer = threading.Thread(target=(filesystem.path / "other").touch)
    writer.start()
    writer.join(60)
    (filesystem.path / "own").touch()
    found = {each.path: (each.process, each.thread) for each in filesystem.operations() if each.name == "create"}
    assert found == {"other": (os.getpid(), writer.native_id), "own": (os.getpid(), threading.get_native_id())}


def test_a_program_that_begins_closes_files_while_operations_are_recorded(filesystem: FaultyFilesystem) -> None:
    """The kernel then locks its entry in /proc, for which the server must not wait."""
    filesystem.record()
    program = "import subprocess, sys; file = open(sys.argv[1], 'w'); subprocess.run(['true'], close_fds=False)"
    subprocess.run([sys.executable, "-c", program, str(filesystem.path / "file")], check=True, timeout=60)
    flushed = {each.process for each in filesystem.operations() if each.name == "flush"}
    assert len(flushed) == 2  # by the second program at its begin, and by the first at its end
