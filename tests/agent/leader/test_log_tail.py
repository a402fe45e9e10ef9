"""A filesystem that pauses does not hold up whoever wants to quote a log."""

from __future__ import annotations

import os
from pathlib import Path

from muster.agent.leader.log_tail import LogTails


def test_the_last_lines_of_a_log_and_none_of_a_missing_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree\n")
    assert LogTails().of(str(log), 2) == ["two", "three"]
    assert LogTails().of(str(tmp_path / "none")) == []


def test_a_read_that_hangs_is_given_up_and_no_other_is_tried(tmp_path: Path) -> None:
    stuck, log = tmp_path / "stuck", tmp_path / "log"
    os.mkfifo(stuck)  # nobody writes to it: opening it waits
    log.write_text("one\n")
    tails = LogTails()
    try:
        assert tails.of(str(stuck)) == []
        assert tails.of(str(log)) == []
    finally:
        os.close(os.open(stuck, os.O_RDWR))
