"""`muster logs --ray`: why there are no archives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.runs.conftest import FakeRun

from muster.cli.errors import run_command_line
from muster.cli.main import cli
from muster.rundir import write_json


@pytest.mark.parametrize(
    ("job", "state", "said"),
    [
        ({"ray": False}, "succeeded", "has no Ray"),
        ({"ray_logs": "on-failure"}, "running", "has not ended"),
        ({"ray_logs": "on-failure"}, "succeeded", "`--ray-logs always` keeps them after a success, too"),
    ],
)
def test_logs_of_rays_that_are_not_there_are_explained(
    runs_dir: Path, capsys: pytest.CaptureFixture[str], job: dict[str, object], state: str, said: str
) -> None:
    run = FakeRun(str(runs_dir / "young")).publishes(state)
    write_json(run.job, {"nodes": 1, **job})
    if state == "running":
        os.unlink(run.attempt(0).outcome)
    assert run_command_line(cli, ["logs", "young", "--ray"]) == 1
    assert said in capsys.readouterr().err
