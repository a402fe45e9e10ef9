"""Storage that is written and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.health.checks import storage
from muster.agent.health.checks.finding import CheckedNode, Verdict, failed


def test_storage_that_works_passes_and_nothing_is_left(tmp_path: Path) -> None:
    node = CheckedNode({}, str(tmp_path), str(tmp_path))
    assert storage.check_local(node, 60.0).verdict is Verdict.PASSED
    assert storage.check_shared(node, 60.0).verdict is Verdict.PASSED
    assert list(tmp_path.iterdir()) == []


def test_slow_storage_and_other_data_are_failures() -> None:
    assert storage.judge_trial("/scratch", True, 7.25, 5.0) == failed(
        "/scratch needed 7.2 s to write and read 4 MiB, more than 5 s"
    )
    assert storage.judge_trial("/scratch", False, 0.1, 5.0) == failed("/scratch returned other data than was written")


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        storage.try_storage(str(tmp_path / "gone"), 5.0)
