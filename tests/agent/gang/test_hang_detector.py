"""Detection of a hung process by its log and its beat file, among the processes that still run."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.gang.hang_detector import HangDetector, SilentRank, beat_file


@pytest.fixture
def logs(tmp_path: Path) -> dict[int, str]:
    paths = {local: tmp_path / f"rank-{local}.log" for local in range(3)}
    for path in paths.values():
        path.touch()
    return {local: str(path) for local, path in paths.items()}


def test_output_and_beats_of_one_process_do_not_count_for_another(tmp_path: Path, logs: dict[int, str]) -> None:
    detector = HangDetector(10, logs, str(tmp_path))
    assert detector.poll([0, 1, 2], 100) is None
    Path(logs[0]).write_text("output")
    Path(beat_file(str(tmp_path), 2)).touch()
    assert detector.poll([0, 1, 2], 105) is None
    assert detector.poll([0, 1, 2], 110) == SilentRank(1, 10)


def test_the_process_that_hung_first_is_named(tmp_path: Path, logs: dict[int, str]) -> None:
    detector = HangDetector(10, logs, str(tmp_path))
    assert detector.poll([0, 1, 2], 100) is None
    Path(logs[0]).write_text("output")
    Path(logs[1]).write_text("output")
    assert detector.poll([0, 1, 2], 101) is None
    assert detector.poll([0, 1, 2], 120) == SilentRank(2, 20)


def test_a_process_that_has_ended_is_not_waited_for(tmp_path: Path, logs: dict[int, str]) -> None:
    detector = HangDetector(10, logs, str(tmp_path))
    assert detector.poll([0, 1, 2], 100) is None
    assert detector.poll([], 200) is None
