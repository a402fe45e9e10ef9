"""Each cycle's part of the driver's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.leader import cycle_log
from muster.agent.leader.cycle_log import CycleLogs
from muster.rundir import AttemptPaths


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    (tmp_path / "attempt-0" / "logs").mkdir(parents=True)
    return AttemptPaths(str(tmp_path / "attempt-0"))


def write(attempt: AttemptPaths, text: str) -> None:
    with open(attempt.driver_log, "a") as file:
        file.write(text)


def test_a_part_contains_only_the_output_of_its_cycle(attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle_log, "COPY_BYTES", 7)
    logs = CycleLogs(attempt)
    logs.begin(0, "")
    write(attempt, "the first cycle's words\n")
    first = logs.end(0)
    logs.begin(1, "a node was lost")
    write(attempt, "the second's\n")
    second = logs.end(1)
    assert first is not None and second is not None
    logs.copy(second)
    logs.copy(first)
    assert Path(attempt.cycle_driver_log(0)).read_text() == "the first cycle's words\n"
    assert Path(attempt.cycle_driver_log(1)).read_text() == "the second's\n"


def test_a_cycle_whose_driver_never_started_has_no_part(attempt: AttemptPaths) -> None:
    assert CycleLogs(attempt).end(2) is None


def test_a_copy_that_cannot_be_written_leaves_nothing_and_is_no_error(
    attempt: AttemptPaths, caplog: pytest.LogCaptureFixture
) -> None:
    logs = CycleLogs(attempt)
    logs.begin(0, "")
    write(attempt, "words\n")
    part = logs.end(0)
    assert part is not None
    Path(attempt.cycle_driver_log(0)).mkdir(parents=True)  # in the way
    logs.copy(part)
    assert list(Path(attempt.cycle_driver_log(0)).parent.iterdir()) == [Path(attempt.cycle_driver_log(0))]
    assert "could not be written" in caplog.text
