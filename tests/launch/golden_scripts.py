"""The job and the directory of the golden job scripts."""

from __future__ import annotations

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
