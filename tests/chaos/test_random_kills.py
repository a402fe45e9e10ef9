"""Any process of a run is killed at any moment: the run ends in time, with a code that tells, and leaves nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.conftest import TAG, tagged_processes
from tests.running import MusterCommand

DRIVER = ("--stop-grace", "1s", "--", "bash", "-c", "setsid -f sleep 1001; sleep 0.7; exit 9")
ENDS_WITHIN_S = 60.0
# The driver's own; Muster says what was lost; the launcher was killed, so that its tasks were told to leave; the driver
# was killed; `muster run` itself was.
TELLING = (9, 125, 143, 137, -signal.SIGKILL)


def kill_one(seed: int, muster: MusterCommand) -> tuple[str, int]:
    """Start a run, kill one of its processes at a random moment; returns what was killed and the run's exit code."""
    dice = random.Random(seed)
    process = muster.start(*muster.local_args(*DRIVER, nodes=dice.choice([1, 2, 3])))
    time.sleep(dice.uniform(0.05, 1.6))  # the moment is the experiment, not a wait for something
    candidates = sorted(tagged_processes(os.environ[TAG]).items())
    victim, command = dice.choice(candidates) if candidates else (process.pid, "nothing: the run had ended")
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        command = f"{command} (already gone)"
    process.communicate(timeout=ENDS_WITHIN_S)
    return command, process.returncode


@pytest.mark.parametrize("seed", range(12))
def test_a_kill_at_random(muster: MusterCommand, seed: int) -> None:
    command, code = kill_one(seed, muster)
    assert code in TELLING, f"{code} after killing {command}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_kills_at_random(muster: MusterCommand, tmp_path: Path) -> None:
    for seed in range(200):
        (tmp_path / str(seed)).mkdir()
        command, code = kill_one(seed, MusterCommand(cwd=tmp_path / str(seed), python=muster.python))
        assert code in TELLING, f"seed {seed}: {code} after killing {command}"
