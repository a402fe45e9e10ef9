"""A filesystem that hangs delays a reader of log tails only briefly."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from muster.agent.leader import log_tail
from muster.agent.leader.log_tail import LogTails


async def test_the_last_lines_of_a_log_and_none_of_a_missing_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree\n")
    assert await LogTails().read(str(log), 2) == ["two", "three"]
    assert await LogTails().read(str(tmp_path / "none")) == []


async def test_after_a_read_that_hangs_no_other_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    read: list[str] = []

    def hang(path: str, lines: int) -> list[str]:
        read.append(path)
        over.wait()
        return ["one"]

    monkeypatch.setattr(log_tail, "tail_lines", hang)
    tails = LogTails()
    try:
        assert await tails.read("stuck") == []
        assert await tails.read("log") == []
    finally:
        over.set()
    assert read == ["stuck"]
