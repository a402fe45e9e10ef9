"""Logs by ranges: of any size, whole lines, nothing but logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.views.synthetic import SyntheticRun

from muster.process import Log, log_reader
from muster.process.capture import SegmentedLog
from muster.process.log_segments import SEGMENT_COUNT, find_segments
from muster.web.logs import MAX_FOUND, MAX_PART_BYTES, LogFile, find_lines, find_log, logs, read_on, read_part


@pytest.fixture
def run(tmp_path: Path) -> SyntheticRun:
    return SyntheticRun(tmp_path / "r", nodes=2)


def log_of(path: Path, data: bytes) -> LogFile:
    path.write_bytes(data)
    return LogFile(path.name, str(path), len(data))


def test_all_logs_are_listed_the_driver_s_first(run: SyntheticRun) -> None:
    place = Path(run.attempt.root)
    (place / "logs" / "node-0001.log").write_text("x")
    for at in ("services/web", "cycle-1/services/web"):
        (place / "logs" / at).mkdir(parents=True)
        (place / "logs" / at / "node-1.log").write_text("x")
    (place / "logs" / "ray").mkdir()
    (place / "logs" / "ray" / "n1.tar.gz").write_text("x")
    (place / "phases.log").write_text("x")
    Path(run.paths.root, "job.out").write_text("x")
    assert [log.name for log in logs(run.paths)] == [
        "attempt-0/logs/driver.log",
        "attempt-0/logs/node-0001.log",
        "attempt-0/logs/cycle-1/services/web/node-1.log",
        "attempt-0/logs/services/web/node-1.log",
        "attempt-0/phases.log",
        "job.out",
    ]


@pytest.mark.parametrize(
    "name", ["", ".", "job.json", "token", "../r/token", "/etc/passwd", "attempt-0/logs/../../token", "attempt-0/logs"]
)
def test_what_is_no_log_is_not_found(run: SyntheticRun, name: str) -> None:
    Path(run.paths.token).write_text("secret")
    assert find_log(run.paths, name) is None


def test_links_and_pipes_are_no_logs(run: SyntheticRun) -> None:
    place = Path(run.attempt.root, "logs")
    (place / "node-0000.log").symlink_to("/etc/passwd")
    (place / "elsewhere").symlink_to("/etc")
    os.mkfifo(place / "node-0001.log")
    assert [log.name for log in logs(run.paths)] == ["attempt-0/logs/driver.log"]
    assert find_log(run.paths, "attempt-0/logs/node-0000.log") is None


def test_a_range_is_made_of_whole_lines(tmp_path: Path) -> None:
    log = log_of(tmp_path / "x", b"one\ntwo\nthree\n")
    assert read_part(log, 0).data == b"one\ntwo\nthree\n"
    assert read_part(log, 4).data == b"two\nthree\n"
    assert (read_part(log, 5).start, read_part(log, 5).data) == (8, b"three\n")
    assert read_part(log, 0, 6).data == b"one\n"
    assert read_part(log, -6).data == b"three\n"
    assert (read_part(log, 99).start, read_part(log, 99).data) == (14, b"")


def test_what_follows_is_read_exactly_from_where_the_part_before_ended(tmp_path: Path) -> None:
    text = "half a line, and a whole one\n" + "\N{SNOWMAN}" * 200_000 + "\nthe end"
    data, read, at = text.encode(), b"", 0
    for size in (5, 31, 32, 33, len(data)):  # as it grows
        log = log_of(tmp_path / "x", data[:size])
        while part := read_on(log, at).data:
            part.decode()  # no character is cut
            read, at = read + part, at + len(part)
    assert read == data


def test_of_a_log_of_a_gigabyte_parts_are_read(tmp_path: Path) -> None:
    """In less than a second: bench/seeing.py."""
    path = tmp_path / "driver.log"
    with open(path, "wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last line: Needle\n")
    log = LogFile("driver.log", str(path), path.stat().st_size)
    assert read_part(log, -MAX_PART_BYTES).data.endswith(b"Needle\n")
    assert len(read_part(log, 500_000_000).data) <= MAX_PART_BYTES
    at: int | None = 0
    found = []
    while at is not None:
        part = find_lines(log, b"needle", at)
        found += part.lines
        at = part.next
    assert [line for _, line in found] == [b"the last line: Needle"]


def test_lines_are_found_whatever_their_case_with_their_places(tmp_path: Path) -> None:
    log = log_of(tmp_path / "x", b"ok\nan ERROR here\nok\nError and error\nlast")
    found = find_lines(log, b"error", 0)
    assert found.lines == [(3, b"an ERROR here"), (20, b"Error and error")] and found.next is None


def test_many_findings_come_in_parts_none_twice(tmp_path: Path) -> None:
    log = log_of(tmp_path / "x", b"".join(b"line %d\n" % n for n in range(1000)))
    lines: list[bytes] = []
    at: int | None = 0
    while at is not None:
        part = find_lines(log, b"line", at)
        assert len(part.lines) <= MAX_FOUND
        lines += [line for _, line in part.lines]
        at = part.next
    assert lines == [b"line %d" % n for n in range(1000)]


@pytest.fixture
def segmented(run: SyntheticRun, monkeypatch: pytest.MonkeyPatch) -> SegmentedLog:
    monkeypatch.setattr(log_reader, "MIN_COMPLETE_BYTES", 1)
    path = str(Path(run.attempt.root, "logs", "node-0001.log"))
    return SegmentedLog(Log(path).open(), path, 100)


def node_log(run: SyntheticRun) -> LogFile:
    (found,) = [log for log in logs(run.paths) if "node-0001" in log.name]
    assert found == find_log(run.paths, "attempt-0/logs/node-0001.log")
    return found


def test_the_files_of_a_log_are_one_log(run: SyntheticRun, segmented: SegmentedLog) -> None:
    text = b"".join(b"line %d\n" % number for number in range(50))
    segmented.write(text)
    log = node_log(run)
    assert len(find_segments(log.path)) > 2 and log.size == len(text) and not log.is_whole
    assert read_part(log, 0).data == text
    for start in range(0, len(text), 7):
        part = read_part(log, start)
        assert text[part.start :] == part.data and part.start - start < 8 and not part.dropped
        assert read_on(log, start).start == start
    at = read_on(log, 0)
    pieces = [at.data]
    while at.end < log.size:
        at = read_on(log, at.end)
        pieces.append(at.data)
    assert b"".join(pieces) == text
    found = find_lines(log, b"line 4", 0)
    assert [line for _, line in found.lines] == [b"line 4", *(b"line %d" % number for number in range(40, 50))]
    assert all(text[start:].startswith(line) for start, line in found.lines) and found.next is None


def test_a_part_that_is_not_kept_is_skipped_and_counted(run: SyntheticRun, segmented: SegmentedLog) -> None:
    text = b"".join(b"line %03d\n" % number for number in range(500))
    segmented.write(text)
    log = node_log(run)
    first, second, *_ = find_segments(log.path)
    assert len(find_segments(log.path)) == SEGMENT_COUNT and (first, log.size) == (0, len(text))
    part = read_part(log, 2000)
    assert (part.start, part.data) == (second, text[second:]) and part.dropped > 0
    assert read_part(log, -18).data == text[-18:]
    part = read_on(log, 99)
    assert (part.start, part.dropped, part.data[:9]) == (second, second - 99, text[second : second + 9])
    found = find_lines(log, b"line", 0)
    assert all(text[start:].startswith(line + b"\n") for start, line in found.lines)
    assert len(found.lines) == len(read_part(log, 0).data) // 9 + len(text[second:]) // 9
