"""Logs by ranges: of any size, whole lines, nothing but logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.views.synthetic import SyntheticRun

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
