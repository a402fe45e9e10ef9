"""Appending lines: a full disk tears at most the line that it cuts, and loses none that fits into memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.rundir import LineFile, line_file


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of a few pages."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "small", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_lines_are_appended_in_order(tmp_path: Path) -> None:
    file = LineFile(str(tmp_path / "lines"))
    file.append("one\n")
    file.append("two\nthree\n")
    assert (tmp_path / "lines").read_text() == "one\ntwo\nthree\n"
    assert not file.behind


def test_a_torn_line_of_any_writer_is_terminated_before_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("whole\ntor")
    LineFile(str(tmp_path / "lines")).append("next\n")
    assert (tmp_path / "lines").read_text() == "whole\ntor\nnext\n"


def test_what_a_full_disk_refused_is_written_whole_and_in_order_when_there_is_room(small_disk: Path) -> None:
    file, fill = LineFile(str(small_disk / "lines")), small_disk / "fill"
    file.append("first " + "x" * 3000 + "\n")
    with pytest.raises(OSError, match="No space"), fill.open("wb", buffering=0) as filling:
        while True:
            filling.write(bytes(4096))
    for number in (1, 2):
        with pytest.raises(OSError, match="No space"):
            file.append(f"during {number} " + "y" * 3000 + "\n")
    assert file.behind
    assert not (small_disk / "lines").read_text().endswith("\n"), "the disk has torn no line"

    fill.unlink()
    file.append("after\n")
    lines = (small_disk / "lines").read_text().split("\n")
    assert [line.split("x")[0].split("y")[0].strip() for line in lines] == [
        "first",
        "during 1",
        "during 1",
        "during 2",
        "after",
        "",
    ]
    assert len(lines[1]) < len(lines[2])
    assert not file.behind


def test_what_waits_for_room_is_bounded_and_the_newest_lines_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_file, "MAX_UNWRITTEN_BYTES", 10)
    file = LineFile(str(tmp_path / "not there" / "lines"))
    for number in range(5):
        with pytest.raises(OSError):
            file.append(f"say {number}\n")
    (tmp_path / "not there").mkdir()
    file.append("end\n")
    assert (tmp_path / "not there" / "lines").read_text() == "say 4\nend\n"
