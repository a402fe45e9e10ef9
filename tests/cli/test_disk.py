"""`muster du`, `muster clean` and `muster logs --ray`: what is said, asked and done."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from tests.runs.conftest import FakeRun

from muster.cli.errors import run_command_line
from muster.cli.main import cli
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


def test_a_dry_run_says_what_would_go_and_removes_nothing(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(runs_dir.rglob("*"))
    assert muster("clean", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "old" in out and "output kept" in out and "young" not in out and "1 run " in out
    assert sorted(runs_dir.rglob("*")) == before


def test_without_a_terminal_nothing_is_removed_unless_told(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(runs_dir.rglob("*"))
    assert muster("clean") == 1
    assert "give --yes" in capsys.readouterr().err
    assert sorted(runs_dir.rglob("*")) == before


@pytest.mark.parametrize(("answer", "gone"), [(True, True), (False, False)])
def test_on_a_terminal_it_asks(runs_dir: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, gone: bool) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda text: answer)
    assert muster("clean", "--with-output") == 0
    assert (runs_dir / "old").exists() is not gone


def test_what_was_freed_is_said_and_results_stay(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert muster("clean", "--yes") == 0
    out = capsys.readouterr().out
    assert re.search(r"removed 1 run: \S+ kB, \d+ files", out) and "--with-output removes them" in out
    assert (runs_dir / "old" / "output" / "model.pt").read_text() == "weights"
    assert not (runs_dir / "old" / "attempt-0" / "logs").exists()
    assert muster("clean", "--yes") == 0
    assert capsys.readouterr().out == "nothing to remove\n"


def test_with_everything_old_enough_the_newest_is_kept_by_count(runs_dir: Path) -> None:
    assert muster("clean", "--older-than", "0s", "--keep", "1", "--with-output", "--yes") == 0
    assert [path.name for path in runs_dir.iterdir()] == ["young"]


def test_with_a_runs_directory_named_a_link_out_of_it_is_not_followed(runs_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "old").symlink_to(runs_dir / "old")
    assert muster("clean", "--runs-dir", str(tmp_path / "other"), "--with-output", "--yes") == 0
    assert (runs_dir / "old").exists()


@pytest.mark.parametrize("age", ["30", "d", "-1d", "soon"])
def test_an_age_without_a_unit_or_sense_is_refused(
    runs_dir: Path, capsys: pytest.CaptureFixture[str], age: str
) -> None:
    assert muster("clean", "--older-than", age, "--yes") == 2
    assert "such as 30d or 12h" in capsys.readouterr().err
    assert (runs_dir / "old").exists()


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
    assert muster("logs", "young", "--ray") == 1
    assert said in capsys.readouterr().err
