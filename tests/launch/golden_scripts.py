"""The job and the directory of the golden job scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.launch import plan
from muster.spec import JobSpec

GOLDEN = Path(__file__).parent / "golden"

REGENERATE = "REGENERATE_GOLDEN"  # set it to write the files anew; then read the difference

SPEC = JobSpec(
    command=["python", "train.py", "--name", "it's $HOME"],
    name="train",
    setup='module load cuda; source "env.sh"',
    python="python3",
    runs_dir="/shared/runs",
    workdir="/",
    time="2:00:00",
    comment='a "quoted" comment',
)


def fix_details(monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs from run to run and from machine to machine stays the same."""
    monkeypatch.setattr(plan, "new_run_id", lambda name: f"{name}-20260101T000000-ab12")
    monkeypatch.setattr(sys, "executable", "/opt/muster/bin/python")
    monkeypatch.setattr(plan.local_launcher, "__file__", "/opt/muster/lib/local_launcher.py")


def check_golden(kind: str, script: str) -> None:
    """Fail unless the script is the one that was reviewed."""
    golden = GOLDEN / f"{kind}.sh"
    if os.environ.get(REGENERATE):
        golden.write_text(script)
    assert script == golden.read_text(), f"if this change is meant: {REGENERATE}=1 pytest {Path(__file__).parent}"


def check_bash(script: str) -> None:
    """Fail unless bash can parse the script."""
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
