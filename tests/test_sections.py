"""`muster.section()` and `muster.beat()`: what a process writes of its sections and steps, and what that costs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import muster
from muster import sections
from muster.sections import KEPT_DURATIONS, STEP, WARM_UP, SectionRecord, decode_record, encode_record, record_path


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sections.time, "monotonic", clock)
    return clock


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_CONTROL_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_RUN_ID", "run-of-this-test")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(sections, "_record", None)
    return tmp_path


def written(directory: Path) -> dict[str, Any]:
    record = decode_record(Path(record_path(str(directory), os.getpid())).read_bytes())
    assert record is not None
    return record


def test_outside_a_run_a_section_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CONTROL_DIR", raising=False)
    monkeypatch.setattr(sections, "_record", None)
    with muster.section("x"):
        muster.beat(step=1)
    assert sections._record is None


def test_open_sections_are_written_with_begin_and_timeout(directory: Path, clock: Clock) -> None:
    with muster.section("epoch"):
        clock.now = 107.0
        with muster.section("checkpoint", timeout=60.0):
            record = written(directory)
    assert record["open"] == [
        {"name": "epoch", "since": 100.0, "timeout": None},
        {"name": "checkpoint", "since": 107.0, "timeout": 60.0},
    ]
    assert (record["pid"], record["rank"]) == (os.getpid(), "3")
    assert written(directory)["open"] == []


def test_a_section_ends_with_an_exception_too(directory: Path) -> None:
    with pytest.raises(KeyError), muster.section("x"):
        raise KeyError
    assert written(directory)["open"] == []


def test_durations_are_kept_after_the_first_ones_and_only_the_newest(directory: Path, clock: Clock) -> None:
    for number in range(WARM_UP + KEPT_DURATIONS + 5):
        with muster.section("x"):
            clock.now += number
    durations = written(directory)["durations"]["x"]
    assert len(durations) == KEPT_DURATIONS
    assert (durations[0], durations[-1]) == (WARM_UP + 5.0, WARM_UP + KEPT_DURATIONS + 4.0)


def test_steps_are_timed_without_the_sections_between_them(directory: Path, clock: Clock) -> None:
    for step in range(WARM_UP + 3):
        muster.beat(step=step)
        clock.now += 2.0
        with muster.section("checkpoint"):
            clock.now += 100.0
    record = written(directory)
    assert (record["step"], record["durations"][STEP]) == (WARM_UP + 2, [2.0, 2.0])
    assert clock.now - record["beat"] == 2.0
    muster.beat()
    assert written(directory)["beat"] is None  # between steps


def test_a_forked_process_has_its_own_file(directory: Path) -> None:
    with muster.section("x"):
        pid = os.fork()
        if not pid:
            with muster.section("child"):
                os._exit(len(list(directory.iterdir())))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert written(directory)["open"] == []


def test_sections_of_several_threads_do_not_mix(directory: Path) -> None:
    inside, leave = threading.Barrier(2), threading.Event()

    def work() -> None:
        with muster.section("thread"):
            inside.wait(60)
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    with muster.section("main"):
        inside.wait(60)
    assert [one["name"] for one in written(directory)["open"]] == ["thread"]
    leave.set()
    thread.join(60)


def test_a_file_that_is_being_written_is_no_record() -> None:
    content = encode_record({"pid": 7, "open": []})
    assert decode_record(content + b"rest of a longer one") == {"pid": 7, "open": []}
    assert decode_record(content[:-3]) is None
    assert decode_record(content.replace(b"7", b"8")) is None
    assert decode_record(b"") is None


def test_a_process_that_ends_removes_its_file(tmp_path: Path) -> None:
    show = "import os; print(len(os.listdir(os.environ['MUSTER_CONTROL_DIR'])))"
    code = f"import muster\nwith muster.section('x'): pass\n{show}"
    env = {**os.environ, "MUSTER_CONTROL_DIR": str(tmp_path), "MUSTER_RUN_ID": "run-of-this-test"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n" and not list(tmp_path.iterdir())


def test_a_directory_that_is_gone_does_not_fail_the_program(directory: Path) -> None:
    directory.rmdir()
    record = SectionRecord()
    record.leave(record.enter("x", None))
    record.close()
