"""Input on stdin that the driver will not see: noticed before the job is submitted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.running import MusterCommand

from muster.cli.ignored_stdin import STDIN_WARNING, has_input


def test_a_file_with_unread_data_is_input(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("data")
    with open(tmp_path / "input", "rb") as file:
        assert has_input(file.fileno())
        os.lseek(file.fileno(), 0, os.SEEK_END)
        assert not has_input(file.fileno())


def test_a_pipe_with_data_is_input_and_an_empty_one_is_not() -> None:
    reading, writing = os.pipe()
    try:
        assert not has_input(reading)
        os.write(writing, b"data")
        assert has_input(reading)
    finally:
        os.close(reading)
        os.close(writing)


def test_no_stdin_and_devices_are_no_input() -> None:
    with open(os.devnull) as null:
        assert not has_input(null.fileno())
    assert not has_input(1 << 20)


def test_muster_run_warns_that_input_is_not_passed_on(muster: MusterCommand, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("data\n")
    args = ("run", "--backend", "local", "--no-ray", "--dry-run", "--", "cat")
    with open(tmp_path / "input") as stdin:
        warned = muster.start(*args, stdin=stdin, stdout=subprocess.DEVNULL).communicate(timeout=120)[1]
    assert f"muster: warning: {STDIN_WARNING}" in warned
    assert STDIN_WARNING not in muster(*args).stderr
