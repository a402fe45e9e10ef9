"""The last lines of log files."""

from __future__ import annotations

import os
from pathlib import Path

from muster.rundir import RunPaths
from muster.rundir.log_tail import node_tail, tail_of


def test_the_last_lines_are_returned_in_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert tail_of(str(log), 2) == ["line 98", "line 99"]
    assert len(tail_of(str(log), 1000)) == 100


def test_of_a_large_file_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open(log, "wb") as file:
        file.seek(10**12)  # a sparse file: reading it whole would not end
        file.write(b"\nlast\n")
    assert tail_of(str(log), 1) == ["last"]
    log.write_text("first\nsecond\n")
    assert tail_of(str(log), 5, max_bytes=9) == ["t", "second"]


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"caf\xe9\n")
    assert tail_of(str(log), 5) == ["caf\N{REPLACEMENT CHARACTER}"]


def test_a_file_that_cannot_be_read_has_no_lines(tmp_path: Path) -> None:
    assert tail_of(str(tmp_path / "missing"), 5) == tail_of(str(tmp_path), 5) == []


def test_a_node_s_tail_is_that_of_its_log(tmp_path: Path) -> None:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    os.makedirs(os.path.dirname(attempt.node_log(3)))
    Path(attempt.node_log(3)).write_text("".join(f"{number}\n" for number in range(20)))
    assert node_tail(attempt, 3) == [str(number) for number in range(8, 20)]
    assert node_tail(attempt, 4) == []
