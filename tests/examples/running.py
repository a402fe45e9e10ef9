"""Run an example of the repository on this machine, in a copy of its directory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.running import MusterCommand

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    muster: MusterCommand, name: str, *options: str, file: str = "job.yaml"
) -> subprocess.CompletedProcess[str]:
    """Run a job file of an example with further options, in the test's directory."""
    shutil.copytree(EXAMPLES / name, muster.cwd, dirs_exist_ok=True)
    return muster("run", "--backend", "local", "--python", muster.python, "-f", file, *options, timeout=500)


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of the driver; fail with all output if the run failed. Libraries may add lines at any place."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
