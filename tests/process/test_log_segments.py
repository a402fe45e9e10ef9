"""The names of a log's files, and which of them are removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.process.log_segments import (
    MIN_SEGMENT_BYTES,
    SEGMENT_COUNT,
    drop_middle,
    find_segments,
    open_newest,
    segment_bytes,
    segment_path,
    segment_start,
)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("driver.log", 0),
        ("driver.log.000000134217728", 134217728),
        ("driver.log.1", None),
        ("driver.log.00000013421772x", None),
        ("driver.log.000000134217728.tmp", None),
        ("driver.logs", None),
        ("other.log", None),
    ],
)
def test_a_file_is_named_after_its_position(name: str, start: int | None) -> None:
    assert segment_start("/runs/a/driver.log", name) == start
    if start is not None:
        assert segment_path("/runs/a/driver.log", start) == f"/runs/a/{name}"


def test_files_are_found_in_order_and_the_last_one_is_opened(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    assert find_segments(log) == [] and find_segments(str(tmp_path / "none" / "log")) == []
    for start in (700, 0, 90):
        Path(segment_path(log, start)).write_text("x")
    assert find_segments(log) == [0, 90, 700]
    fd, start = open_newest(log)
    os.write(fd, b"y")
    os.close(fd)
    assert start == 700 and Path(segment_path(log, 700)).read_text() == "xy"


def test_the_first_file_and_the_newest_are_kept(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    starts = [10 * number for number in range(SEGMENT_COUNT + 3)]
    for start in starts:
        Path(segment_path(log, start)).touch()
    drop_middle(log)
    assert find_segments(log) == [0, *starts[1 - SEGMENT_COUNT :]]
    drop_middle(log)
    assert len(find_segments(log)) == SEGMENT_COUNT


def test_files_share_the_limit_and_are_never_tiny() -> None:
    assert segment_bytes(1 << 30) * SEGMENT_COUNT == 1 << 30
    assert segment_bytes(1) == MIN_SEGMENT_BYTES
