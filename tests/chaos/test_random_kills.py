"""A run whose processes are killed at random moments ends in time with a meaningful code and leaves nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.conftest import TAG, tagged_processes
from tests.running import MusterCommand, wait_for

PLAIN = ("--stop-grace", "1s", "--", "bash", "-c", "setsid -f sleep 1001; sleep 0.7; exit 9")
ON_RAY = """
import ray, subprocess, sys
ray.init(log_to_driver=False)
subprocess.Popen(["setsid", "sleep", "1001"])
ray.get([ray.remote(lambda: 1).remote() for _ in range(3)])
sys.exit(9)
"""
RAY = ("--stop-grace", "1s", "--ray-logs", "never", "--", "python", "-c", ON_RAY)
ENDS_WITHIN_S = 90.0
OWN = 9  # the driver's: whatever was killed came too late to matter, or did not matter
# Which codes tell the truth about which victim, by a part of its command line. A driver of Ray's may leave by itself
# when its cluster goes (1), or be aborted by Ray (134).
TELLING = {
    "muster.cli.main run": (-signal.SIGKILL,),
    "bash -c setsid": (137,),
    "import ray, subprocess, sys": (137, 125, 1, 134),
    "sleep": (OWN, 137, 1, 125),  # the driver's, or one of Muster's shell scripts
    "local_launcher": (143, 125),
    "bash": (125, 137, 143),
    "ray": (125, 1, 134),
    "raylet": (125, 1, 134),
    "gcs_server": (125, 1, 134),
}
ANY_OTHER = (125, 143, 137, 1, 134)  # agents, supervisors, tail


def kill_one(seed: int, muster: MusterCommand, ray: bool) -> None:
    """Start a run, kill one of its processes at a random moment: the run ends, with a code that tells."""
    dice = random.Random(seed)
    nodes, within = (dice.choice([1, 2]), 9.0) if ray else (dice.choice([1, 2, 3]), 1.6)
    process = muster.start(*muster.local_args(*(RAY if ray else PLAIN), nodes=nodes, ray=ray))
    time.sleep(dice.uniform(0.05, within))  # the moment is the experiment, not a wait for something
    candidates = sorted(tagged_processes(os.environ[TAG]).items())
    victim, command = dice.choice(candidates) if candidates else (process.pid, "nothing: the run had ended")
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        command = f"{command} (already gone)"
    process.communicate(timeout=ENDS_WITHIN_S)
    telling = next((codes for part, codes in TELLING.items() if part in command), ANY_OTHER)
    assert process.returncode in (OWN, *telling), f"seed {seed}: {process.returncode} after killing {command}"


@pytest.mark.parametrize("seed", range(12))
def test_a_kill_at_random(muster: MusterCommand, seed: int) -> None:
    kill_one(seed, muster, ray=False)


@pytest.mark.ray
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_a_kill_at_random_in_a_ray_run(muster: MusterCommand, seed: int) -> None:
    kill_one(seed, muster, ray=True)


@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_two_hundred_kills_at_random(muster: MusterCommand, tmp_path: Path) -> None:
    """Every fifth in a run with Ray. What is left of one is found before the next, by its tag."""
    for seed in range(200):
        (tmp_path / str(seed)).mkdir()
        kill_one(seed, MusterCommand(cwd=tmp_path / str(seed), python=muster.python), ray=seed % 5 == 0)
        wait_for(f"nothing left after seed {seed}", lambda: not tagged_processes(os.environ[TAG]))
