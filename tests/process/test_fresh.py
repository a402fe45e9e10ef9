"""The size of a file that another client has written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.filesystems.faulty_filesystem import faulty_filesystem, why_no_fuse

from muster.process import fresh
from muster.process.fresh import refresh


def test_an_ordinary_file_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("text")
    with open(tmp_path / "log", "rb") as file:
        refresh(file.fileno())
        assert file.read() == b"text"


def test_a_system_without_the_call_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "_statx", lambda: None)
    with open(tmp_path / "log", "wb") as file:
        refresh(file.fileno())


@pytest.mark.skipif(why_no_fuse() is not None, reason=str(why_no_fuse()))
def test_a_file_that_grew_behind_a_cache_is_read_to_its_new_end(tmp_path: Path) -> None:
    with faulty_filesystem(tmp_path / "filesystem", cache_seconds=3600) as filesystem:
        path = filesystem.path / "log"
        path.write_bytes(b"one")
        assert os.stat(path).st_size == 3
        with open(filesystem.behind / "log", "ab") as file:  # as another client does
            file.write(b"two")
        reader = os.open(path, os.O_RDONLY)
        assert os.read(reader, 100) == b"one"
        refresh(reader)
        assert os.pread(reader, 100, 0) == b"onetwo"
        os.close(reader)
