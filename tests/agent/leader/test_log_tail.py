"""A filesystem that hangs delays a reader of log tails only briefly."""

from __future__ import annotations

import os
from pathlib import Path

from muster.agent.leader.log_tail import LogTails


async def test_the_last_lines_of_a_log_and_none_of_a_missing_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree\n")
    assert await LogTails().read(str(log), 2) == ["two", "three"]
    assert await LogTails().read(str(tmp_path / "none")) == []


async def test_after_a_read_that_hangs_no_other_is_tried(tmp_path: Path) -> None:
    stuck, log = tmp_path / "stuck", tmp_path / "log"
    os.mkfifo(stuck)  # without a writer, opening it blocks
    log.write_text("one\n")
    tails = LogTails()
    try:
        assert await tails.read(str(stuck)) == []
        assert await tails.read(str(log)) == []
    finally:
        os.close(os.open(stuck, os.O_RDWR))
