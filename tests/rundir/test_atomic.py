"""Publishing: a reader sees a complete file or none."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from muster.rundir import read_json, read_record, write_atomic, write_json, written_at

SIZE = 200_000  # many pages: a plain write of it can be seen half done


def test_what_was_published_can_be_read(tmp_path: Path) -> None:
    path = str(tmp_path / "value.json")
    write_json(path, {"host": "grün", "ranks": [0, 1], "none": None})
    assert read_json(path) == {"host": "grün", "ranks": [0, 1], "none": None}


def test_publishing_again_replaces_the_value_and_leaves_no_other_file(tmp_path: Path) -> None:
    for value in range(3):
        write_json(str(tmp_path / "value.json"), value)
    assert read_json(str(tmp_path / "value.json")) == 2
    assert os.listdir(tmp_path) == ["value.json"]


def test_a_reader_never_sees_part_of_a_file(tmp_path: Path) -> None:
    path, torn, looks, done = tmp_path / "value", [], 0, threading.Event()
    write_atomic(str(path), "a" * SIZE)

    def read() -> None:
        nonlocal looks
        while not done.is_set():
            text = path.read_text()
            looks += 1
            if len(text) != SIZE or len(set(text)) != 1:
                torn.append(len(text))

    reader = threading.Thread(target=read)
    reader.start()
    round = 0
    while round < 200 or looks < 50:
        round += 1
        write_atomic(str(path), "abcdefgh"[round % 8] * SIZE)
    done.set()
    reader.join()
    assert torn == []


def test_two_processes_that_publish_the_same_file_do_not_mix(tmp_path: Path) -> None:
    program = "import sys; from muster.rundir import write_atomic\n"
    program += "for _ in range(100): write_atomic(sys.argv[1], sys.argv[2] * 100_000)"
    path = tmp_path / "value"
    path.write_text("a" * 100_000)
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), letter]) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        text = path.read_text()
        assert (len(text), len(set(text))) == (100_000, 1)
    assert [writer.wait() for writer in writers] == [0, 0]
    assert os.listdir(tmp_path) == ["value"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_a_file_has_its_mode_from_the_first_moment(tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, path = [], tmp_path / "token"
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda source, target: (seen.append(os.stat(source)), rename(source, target)))
    write_atomic(str(path), "secret", mode=mode)
    assert [stat.S_IMODE(each.st_mode) for each in (*seen, path.stat())] == [mode, mode]


def test_a_secret_stays_secret_when_it_replaces_a_public_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("public")
    path.chmod(0o644)
    write_atomic(str(path), "secret", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_publication_leaves_the_old_value_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "value"
    write_atomic(str(path), "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(str(path), "half a character: \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["value"]


def test_reading_what_is_not_there_or_not_whole_gives_none(tmp_path: Path) -> None:
    whole = json.dumps({"rank": 3, "host": "n3"}).encode()
    assert read_json(str(tmp_path / "missing")) is None
    assert read_json(str(tmp_path / "no" / "such" / "directory")) is None
    assert read_json(str(tmp_path)) is None
    for contents in (b"", whole[:-1], b"\xff\xfe\x00", b"{]"):
        (tmp_path / "partial").write_bytes(contents)
        assert read_json(str(tmp_path / "partial")) is None


@pytest.mark.parametrize("contents", ["", "{", "[]", "3", "null", '"text"'])
def test_what_is_no_object_is_no_record(tmp_path: Path, contents: str) -> None:
    (tmp_path / "record").write_text(contents)
    assert read_record(str(tmp_path / "record")) == {}


def test_bytes_that_are_no_text_do_not_hide_the_rest(tmp_path: Path) -> None:
    (tmp_path / "outcome").write_bytes(b'{"exit_code": 125, "end_reason": "gr\xfcn"}')
    assert read_json(str(tmp_path / "outcome")) == {"exit_code": 125, "end_reason": "gr\ufffdn"}


def test_the_time_of_the_last_write_is_unknown_without_a_file(tmp_path: Path) -> None:
    assert written_at(str(tmp_path / "missing")) is None
    (tmp_path / "file").touch()
    os.utime(tmp_path / "file", (5.0, 7.5))
    assert written_at(str(tmp_path / "file")) == 7.5
