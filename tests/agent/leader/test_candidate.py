"""The candidate for a term."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.conftest import identity

from muster.agent.leader.candidate import cycles_without_progress
from muster.rundir import write_json


@pytest.mark.parametrize(
    ("progress", "count"), [([], 0), ([False, False], 2), ([True], 0), ([True, False, False], 2), ([False, True], 0)]
)
def test_the_last_cycles_without_progress_are_counted(tmp_path: Path, progress: list[bool], count: int) -> None:
    attempt = identity(tmp_path, 0).attempt
    write_json(attempt.status(0), {"cycles": [{"progress": made} for made in progress]})
    assert cycles_without_progress(attempt) == count


def test_without_a_status_no_cycle_is_counted(tmp_path: Path) -> None:
    assert cycles_without_progress(identity(tmp_path, 0).attempt) == 0
