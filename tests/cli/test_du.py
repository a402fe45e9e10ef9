"""`muster du`: the disk usage of runs, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.cli.errors import run_command_line
from muster.cli.main import cli


def muster(*args: str) -> int:
    return run_command_line(cli, args)


def test_du_lists_each_run_by_parts_and_the_sum(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert muster("du") == 0
    header, old, young, both = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header == ["run", "logs", "ray", "output", "other", "total", "files"]
    assert (old[0], young[0], both[:2]) == ("old", "young", ["2", "runs"])


def test_du_as_json_adds_up(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert muster("du", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in found["runs"]] == ["old", "young"]
    for what in ("bytes", "files"):
        assert found["total"][what] == sum(run[what] for run in found["runs"])
        assert found["total"][what] == sum(part[what] for part in found["total"]["parts"].values())


def test_du_of_a_run_that_is_not_there_is_refused(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert muster("du", "eval") == 1
    assert "no run or job eval" in capsys.readouterr().err
