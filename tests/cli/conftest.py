"""Runs for the tests of commands."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.invocation import Finished, Invoke, StartRun, running
from tests.fake_slurm import fake_slurm
from tests.runs.conftest import FakeRun, make_run

from muster.cli.errors import run_command_line
from muster.cli.main import cli
from muster.rundir import write_json

__all__ = ["fake_slurm", "make_run"]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run `muster` with these words in this process, without a terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def invoke(*words: str) -> Finished:
        code = run_command_line(cli, words)
        return Finished(code, *capsys.readouterr())

    return invoke


@pytest.fixture
def start_run(make_run: StartRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartRun:
    """Make the directory of a run whose driver runs, in the runs directory of the current directory."""
    monkeypatch.chdir(tmp_path)

    def start(name: str = "train", backend: str = "local", **status: Any) -> FakeRun:
        return running(make_run(name), backend, **status)

    return start


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
