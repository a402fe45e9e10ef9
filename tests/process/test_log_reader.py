"""Reading a log across its files: nothing is lost or repeated, and what was removed is reported."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from muster.process import Log, log_reader
from muster.process.capture import SegmentedLog
from muster.process.log_reader import LogReader, drop_notice, log_end, tail_bytes, tail_lines, tail_position
from muster.process.log_segments import SEGMENT_COUNT, find_segments, segment_path


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "MIN_COMPLETE_BYTES", 1)


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def writer(path: str, segment_bytes: int) -> SegmentedLog:
    return SegmentedLog(Log(path).open(), path, segment_bytes)


def all_of(reader: LogReader, max_bytes: int = 1 << 20) -> bytes:
    return b"".join(iter(lambda: reader.read(max_bytes), b""))


@pytest.mark.parametrize("max_bytes", [1, 3, 100])
def test_a_log_is_read_whole_across_its_files(log: str, max_bytes: int) -> None:
    writer(log, 8).write(b"one\ntwo\nthree\nfour\n")
    assert len(find_segments(log)) > 1
    reader = LogReader(log)
    assert all_of(reader, max_bytes) == b"one\ntwo\nthree\nfour\n"
    assert (reader.position, reader.dropped, reader.read()) == (19, 0, b"")


def test_a_log_can_be_read_from_any_position(log: str) -> None:
    text = b"".join(b"line %d\n" % number for number in range(10))
    writer(log, 20).write(text)
    assert [all_of(LogReader(log, start)) for start in range(len(text) + 1)] == [
        text[start:] for start in range(len(text) + 1)
    ]


def test_a_follower_sees_every_byte_once_while_files_begin(log: str) -> None:
    writing, reader, seen, rng = writer(log, 30), LogReader(log), b"", random.Random(1)
    sent = b""
    for number in range(100):
        line = b"%d %s\n" % (number, b"x" * rng.randrange(20))
        sent += line
        writing.write(line[: len(line) // 2])
        if rng.random() < 0.5:
            seen += reader.read(rng.randrange(1, 40))
        writing.write(line[len(line) // 2 :])
        while (data := reader.read_with_notice(16)) and rng.random() < 0.9:
            seen += data
        seen += data
    while data := reader.read_with_notice(16):
        seen += data
    assert seen == sent and len(find_segments(log)) == SEGMENT_COUNT


def test_a_follower_beside_a_fast_writer_loses_nothing(log: str) -> None:
    """The writer begins files at any moment between two reads; with few files nothing is removed."""
    text = b"".join(b"line %d\n" % number for number in range(60_000))
    segment_bytes = len(text) // (SEGMENT_COUNT - 1)

    def write() -> None:
        writing = writer(log, segment_bytes)
        for start in range(0, len(text), 1000):
            writing.write(text[start : start + 1000])

    thread = threading.Thread(target=write)
    thread.start()
    reader, seen = LogReader(log), b""
    while len(seen) < len(text):
        seen += reader.read_with_notice(5000)
        assert text.startswith(seen[:100]) and len(seen) <= len(text)
    thread.join()
    assert seen == text


def test_a_slow_reader_is_told_how_much_it_has_missed(log: str) -> None:
    writing, reader = writer(log, 10), LogReader(log)
    writing.write(b"first\nbeg")
    assert reader.read_with_notice() == b"first\nbeg"
    text = b"un\n" + b"".join(b"line %03d\n" % number for number in range(50))
    writing.write(text)
    rest = b"".join(iter(reader.read_with_notice, b""))
    kept = b"".join(b"line %03d\n" % number for number in range(50 - (SEGMENT_COUNT - 1), 50))
    dropped = len(text) - len(b"un\n") - len(kept)
    assert rest == b"un\n" + drop_notice(dropped) + kept
    assert reader.dropped == dropped and reader.position == len(b"first\nbeg" + text)


def test_a_notice_begins_a_line(log: str) -> None:
    Path(log).write_text("no end of line")
    reader = LogReader(log)
    assert reader.read_with_notice() == b"no end of line"
    for start in range(100, 100 + SEGMENT_COUNT):
        Path(segment_path(log, start)).write_text("x")
    assert reader.read_with_notice() == b"\n" + drop_notice(86) + b"x"


def test_bytes_that_a_network_filesystem_does_not_show_yet_are_waited_for(log: str) -> None:
    Path(log).write_text("one\ntw")
    Path(segment_path(log, 8)).write_text("three\n")
    reader = LogReader(log)
    assert [reader.read_with_notice() for _ in range(3)] == [b"one\ntw", b"", b""]
    with open(log, "a") as file:
        file.write("o\n")
    assert [reader.read_with_notice() for _ in range(3)] == [b"o\n", b"three\n", b""]


def test_a_reader_whose_file_is_removed_goes_on_with_the_next(log: str) -> None:
    for start, text in ((0, "a" * 10), (10, "b" * 10), (20, "c" * 10), (30, "d" * 10)):
        Path(segment_path(log, start)).write_text(text)
    reader = LogReader(log, 12)
    assert reader.read(3) == b"bbb"
    for start in (10, 20):
        os.unlink(segment_path(log, start))
    assert (reader.read(), reader.dropped) == (b"d" * 10, 15)


def test_there_may_be_no_log_yet(log: str) -> None:
    reader = LogReader(log)
    assert reader.read() == b"" and log_end(log) is None and tail_lines(log, 5) == [] and tail_position(log, 5) == 0
    Path(log).write_text("up\n")
    assert reader.read() == b"up\n"


def test_a_log_that_is_a_link_is_not_read(log: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", log)
    assert LogReader(log).read() == b""


@pytest.mark.parametrize("segment_bytes", [5, 12, 1000])
def test_the_last_lines_are_found_across_files(log: str, segment_bytes: int) -> None:
    lines = [f"line {number}" for number in range(9)]
    writer(log, segment_bytes).write("".join(f"{line}\n" for line in lines).encode())
    kept = tail_lines(log, 100)
    assert tail_lines(log, 2) == lines[-2:] and tail_lines(log, 0) == []
    assert tail_lines(log, 9, max_bytes=14) == lines[-2:] and tail_bytes(log, 3) == b" 8\n"
    for count in range(1, 12):
        reader = LogReader(log, tail_position(log, count, block_bytes=10))
        assert all_of(reader).decode().splitlines() == kept[-count:]


def test_an_incomplete_last_line_counts_as_a_line(log: str) -> None:
    Path(log).write_text("one\ntwo\nthree")
    assert all_of(LogReader(log, tail_position(log, 1))) == b"three"
    assert all_of(LogReader(log, tail_position(log, 2))) == b"two\nthree"
    assert tail_position(log, 0) == len("one\ntwo\nthree")


def test_the_end_counts_what_was_removed(log: str) -> None:
    text = b"".join(b"line %03d\n" % number for number in range(50))
    writer(log, 9).write(text)
    end = log_end(log)
    assert end is not None and end[0] == len(text) > sum(
        os.path.getsize(segment_path(log, start)) for start in find_segments(log)
    )
