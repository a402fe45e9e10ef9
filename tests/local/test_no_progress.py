"""Cycles without progress end a run on this machine at the configured limit, with their exit code."""

from __future__ import annotations

import pytest
from tests.running import MusterCommand

RETRY = ("--restart-on-driver-failure", "--max-restarts", "4")
# Two cycles get further than the one before, the later ones only repeat the last.
STEPS = "import muster, os, sys; muster.beat(step=min(int(os.environ['MUSTER_CYCLE']), 1)); sys.exit(7)"


@pytest.mark.parametrize(
    ("options", "code", "cycles"),
    [
        (("--no-progress-limit", "2"), 119, 2),
        (("--no-progress-limit", "0"), 7, 5),
        (("--no-progress-limit", "2", "--max-restarts", "1"), 7, 2),
    ],
    ids=["limited", "off", "budget-first"],
)
def test_a_driver_that_fails_again_and_again_is_given_up(
    muster: MusterCommand, options: tuple[str, ...], code: int, cycles: int
) -> None:
    done = muster.local(*RETRY, *options, "--", "bash", "-c", "exit 7")
    assert done.returncode == code, done.stderr
    status = muster.status()
    assert [cycle["progress"] for cycle in status["cycles"]] == [False] * cycles
    assert ("2 cycles in a row without progress (--no-progress-limit 2)" in status["end_reason"]) is (code == 119)


def test_steps_that_only_repeat_older_ones_are_no_progress(muster: MusterCommand) -> None:
    done = muster.local(*RETRY, "--no-progress-limit", "2", "--", muster.python, "-c", STEPS)
    assert done.returncode == 119, done.stderr
    assert [cycle["progress"] for cycle in muster.status()["cycles"]] == [True, True, False, False]
