"""Rank 0's output is copied to the driver's log completely and once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from muster.agent.gang.log_mirror import CHUNK_BYTES, LogMirror


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "rank-0000.log", tmp_path / "driver.log"


def test_what_is_written_bit_by_bit_arrives_once_and_in_order(files: tuple[Path, Path]) -> None:
    source, target = files
    mirror, random_bytes = LogMirror(str(source), str(target)), random.Random(1)
    written = b""
    with open(source, "ab", buffering=0) as file:
        for size in (3, 0, CHUNK_BYTES + 7, 1, 2 * CHUNK_BYTES, 0):
            written += (data := random_bytes.randbytes(size))
            file.write(data)
            mirror.copy()
            assert target.read_bytes() == written


def test_it_follows_what_the_log_holds_already(files: tuple[Path, Path]) -> None:
    source, target = files
    target.write_text("muster: cycle 1: because\n")
    source.write_text("begun\n")
    LogMirror(str(source), str(target)).copy()
    assert target.read_text() == "muster: cycle 1: because\nbegun\n"


def test_before_the_process_has_begun_there_is_nothing_to_copy(files: tuple[Path, Path]) -> None:
    source, target = files
    LogMirror(str(source), str(target)).copy()
    assert not target.exists()


def test_what_did_not_fit_on_the_disk_is_copied_later(files: tuple[Path, Path]) -> None:
    source, _ = files
    source.write_text("a line\n")
    mirror = LogMirror(str(source), "/dev/full")
    with pytest.raises(OSError, match="No space"):
        mirror.copy()
    mirror._target = str(files[1])
    mirror.copy()
    assert files[1].read_text() == "a line\n"
