"""Runs for the tests of commands."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.runs.conftest import FakeRun

from muster.rundir import write_json


@pytest.fixture
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, of which one is two months old and has results."""
    monkeypatch.chdir(tmp_path)
    for name, days, results in (("old", 60, ["model.pt"]), ("young", 1, [])):
        run = FakeRun(str(tmp_path / "muster-runs" / name))
        os.makedirs(run.output_dir)
        write_json(run.job, {"nodes": 1})
        run.submitted(kind="local", pid=1, host="h").begins().says("x" * 50_000).ends(0, "the driver exited with 0")
        for result in results:
            Path(run.output_dir, result).write_text("weights")
        when = time.time() - days * 86400
        for root, _, names in os.walk(run.root):
            for each in names:
                os.utime(os.path.join(root, each), (when, when))
    return tmp_path / "muster-runs"
