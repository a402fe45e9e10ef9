"""The example that resumes writes a checkpoint on request, and the next attempt continues from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.running import MusterCommand

EXAMPLE = Path(__file__).parents[2] / "examples" / "resume.py"


def test_the_example_checkpoints_on_a_signal_and_the_next_attempt_goes_on_from_there(muster: MusterCommand) -> None:
    words = ["--steps", "100000", "--every", "100000"]
    process = muster.start(*muster.local_args("--", "python", str(EXAMPLE), *words, nodes=1))
    checkpoint = muster.wait_for_driver("starting at step 0") / "output" / "checkpoint.json"
    os.kill(muster.agent_pid(0), signal.SIGUSR2)  # as Slurm's --signal does
    run = muster.wait_for_driver("on request")
    os.kill(muster.agent_pid(0), signal.SIGTERM)  # as when Slurm preempts the job
    process.communicate(timeout=180)
    assert process.returncode == 143
    saved = json.loads(checkpoint.read_text())
    assert [path.name for path in checkpoint.parent.iterdir()] == ["checkpoint.json"]

    env = {"MUSTER_RESUME": "1", "MUSTER_RUN_ID": run.name, "MUSTER_OUTPUT_DIR": str(checkpoint.parent)}
    more = ["--steps", str(saved["step"] + 2), "--step-seconds", "0"]
    again = subprocess.run(
        [muster.python, str(EXAMPLE), *more], env={**os.environ, **env}, capture_output=True, text=True, timeout=180
    )
    total = sum(range(saved["step"] + 2))
    assert again.stdout.splitlines()[0] == f"resumed run {run.name} at step {saved['step']}", again.stderr
    assert again.stdout.splitlines()[-1] == f"done: {total} after {saved['step'] + 2} steps"
