"""Control requests of a program: what it writes, until when it waits, and on which node it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import muster
from muster import control_requests
from muster.control_requests import create_directory
from tests.running import wait_for

SOURCES = str(Path(muster.__file__).parents[1])
SHOW = "from muster.control_requests import own_directory; print(own_directory())"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run's node; this process has no ancestor in that run."""
    monkeypatch.setenv("MUSTER_CONTROL_DIR", str(tmp_path / "ctl"))
    monkeypatch.setenv("MUSTER_RUN_ID", "run-of-this-test")
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "ctl").mkdir()
    return tmp_path / "ctl"


def requested(directory: Path, call: Callable[[], bool]) -> tuple[dict[str, Any], bool]:
    """Return what a call has written, and its result once that is recorded."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    (path,) = wait_for("a request", lambda: list(directory.glob("*.json")))
    record: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    thread.join(60)
    return record, results[0]


def test_outside_a_run_a_request_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CONTROL_DIR", raising=False)
    assert [muster.exclude_node("x"), muster.no_restart("x"), muster.request_restart("x")] == [False] * 3


def test_a_call_returns_when_its_request_is_recorded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, result = requested(directory, lambda: muster.exclude_node("bad memory", when="next_restart", timeout=60))
    assert result
    assert record == {"kind": "exclude_node", "reason": "bad memory", "when": "next_restart", "rank": None}
    monkeypatch.setenv("RANK", "3")
    record, result = requested(directory, lambda: muster.no_restart("wrong data", timeout=60))
    assert result and record == {"kind": "no_restart", "reason": "wrong data", "when": None, "rank": "3"}
    record, _ = requested(directory, lambda: muster.request_restart("NaN", timeout=60))
    assert record["kind"] == "request_restart"


def test_a_request_that_is_not_recorded_in_time_is_reported(directory: Path) -> None:
    assert not muster.no_restart("x", timeout=0.0)
    assert len(list(directory.glob("*.json"))) == 1  # it may still be recorded


def test_a_request_in_a_cycle_that_has_ended_is_reported(directory: Path) -> None:
    directory.rmdir()
    assert not muster.no_restart("x")


def test_an_unknown_time_is_refused_with_the_known_ones(directory: Path) -> None:
    with pytest.raises(ValueError, match="when='later': must be one of now, next_restart"):
        muster.exclude_node("x", when="later")


def directory_of_a_child(own: dict[str, str], copied: dict[str, str]) -> str:
    """Return what a process with the `copied` variables finds, whose parent started with its `own` ones."""
    start_child = f"subprocess.run([sys.executable, '-c', {SHOW!r}], env={{**os.environ, **{copied!r}}})"
    parent = [sys.executable, "-c", f"import os, subprocess, sys; {start_child}"]
    done = subprocess.run(parent, env={**os.environ, **own}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_variables_that_were_copied_from_another_node_do_not_count(directory: Path) -> None:
    own = {"MUSTER_CONTROL_DIR": "/of/this/node", "MUSTER_RUN_ID": "run-of-this-test"}
    assert directory_of_a_child(own, {**own, "MUSTER_CONTROL_DIR": "/of/the/driver"}) == "/of/this/node"


def test_variables_of_an_enclosing_run_do_not_count(directory: Path) -> None:
    outer = {"MUSTER_CONTROL_DIR": "/of/the/outer/run", "MUSTER_RUN_ID": "outer"}
    inner = {"MUSTER_CONTROL_DIR": "/of/the/inner/run", "MUSTER_RUN_ID": "inner"}
    assert directory_of_a_child(outer, inner) == "/of/the/inner/run"


def test_the_module_needs_only_the_standard_library() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(Path(muster.__file__).parents[1])!r}); {SHOW}",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert control_requests.WHEN == ("now", "next_restart")


def test_the_directory_for_requests_is_private_as_is_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run" / "0.0.1.ctl"
    for _ in range(2):
        create_directory(str(directory))
    assert [path.stat().st_mode & 0o777 for path in (directory, directory.parent)] == [0o700, 0o700]
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError, match="only this user"):
        create_directory(str(tmp_path / "run" / "0.1.1.ctl"))
    monkeypatch.undo()
    directory.parent.chmod(0o755)
    with pytest.raises(PermissionError, match="only this user"):
        create_directory(str(tmp_path / "run" / "0.1.1.ctl"))
