"""Synthetic run directories: the files of a submitter, a leader and a job script, without running any of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fake_slurm import fake_slurm

from muster.rundir import RunPaths, write_json

__all__ = ["fake_slurm"]


class FakeRun(RunPaths):
    """A run directory that the test writes into."""

    def submitted(self, **fields: Any) -> FakeRun:
        write_json(
            self.submission, {"run": self.run_id, "backend": "slurm", "kind": "sbatch", "job_id": None, **fields}
        )
        return self

    def begins(self, number: int = 0) -> FakeRun:
        """The job script starts an attempt."""
        os.makedirs(os.path.dirname(self.attempt(number).driver_log))
        return self

    def publishes(self, state: str, attempt: int = 0, term: int = 0, **fields: Any) -> FakeRun:
        """A leader publishes its status."""
        status = {"state": state, "attempt": attempt, "end_reason": None, "error": None, "term": term, **fields}
        write_json(self.attempt(attempt).status(term), status)
        return self

    def ends(self, exit_code: int, end_reason: str, attempt: int = 0) -> FakeRun:
        """The leader or the job script records the outcome."""
        write_json(self.attempt(attempt).outcome, {"exit_code": exit_code, "end_reason": end_reason})
        return self

    def script_ends(self, attempt: int = 0) -> FakeRun:
        """The job script leaves its last word."""
        with open(self.attempt(attempt).job_end, "a") as file:
            file.write("seen\nended\n")
        return self

    def says(self, text: str, attempt: int = 0) -> FakeRun:
        """The driver writes."""
        with open(self.attempt(attempt).driver_log, "a") as file:
            file.write(text)
        return self

    def tells(self, event: str, attempt: int = 0, **fields: Any) -> FakeRun:
        """The leader appends an event."""
        with open(self.attempt(attempt).events(), "a") as file:
            file.write(json.dumps({"event": event, **fields}) + "\n")
        return self


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., FakeRun]:
    """Makes a run; each is a second younger than the one before."""
    made: list[FakeRun] = []

    def make(name: str = "train-20260101T000000-ab12", runs_dir: Path = tmp_path / "muster-runs") -> FakeRun:
        run = FakeRun(str(runs_dir / name))
        os.makedirs(run.root)
        write_json(run.job, {"nodes": 2})
        made.append(run)
        os.utime(run.job, (1_000_000 + len(made), 1_000_000 + len(made)))
        return run

    return make


@pytest.fixture
def run(make_run: Callable[..., FakeRun]) -> FakeRun:
    return make_run()
