"""Files in memory by each of the possible means: Python, the C library, an unnamed file."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from muster.process import memory_file as means
from muster.process.memory_file import memory_file


@pytest.fixture(params=["python", "library", "unnamed file", "unnamed file on disk"])
def mean(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    name: str = request.param
    if name != "python":
        monkeypatch.delattr(os, "memfd_create")
    if name.startswith("unnamed"):
        monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # no such function in there
    if name.endswith("on disk"):
        monkeypatch.setattr(means, "SHARED_MEMORY", str(tmp_path / "not-there"))
    return name


def test_it_holds_what_was_given_and_has_no_name(mean: str) -> None:
    fd = memory_file("of-test", [b"one, ", b"x" * 100_000])
    assert os.read(fd, 5) == b"one, " and len(os.read(fd, 200_000)) == 100_000
    assert os.fstat(fd).st_nlink == 0 and not os.get_inheritable(fd)
    assert ("memfd:of-test" in os.readlink(f"/proc/self/fd/{fd}")) == (not mean.startswith("unnamed"))
    os.close(fd)


def test_two_that_map_it_share_what_is_written(mean: str) -> None:
    fd = memory_file("of-test", [bytes(8)])
    with mmap.mmap(fd, 8) as one, mmap.mmap(fd, 8, mmap.MAP_SHARED, mmap.PROT_READ) as other:
        one[:4] = b"word"
        assert other[:4] == b"word"
    os.close(fd)


def test_a_sealed_file_cannot_be_changed_by_its_receiver(mean: str) -> None:
    fd = memory_file("of-test", [b"settled"], sealed=True)
    for change in (lambda: os.write(fd, b"x"), lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 100)):
        with pytest.raises(OSError):
            change()
    assert os.read(fd, 100) == b"settled"
    os.close(fd)


def test_it_says_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(means, "_create", lambda name: None)
    monkeypatch.setattr(means, "SHARED_MEMORY", str(tmp_path / "one"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "other"))
    with pytest.raises(OSError, match=rf"no unnamed file can be written \({tmp_path}/one: .*; {tmp_path}/other: "):
        memory_file("of-test", [b""])
