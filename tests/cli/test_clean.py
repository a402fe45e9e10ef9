"""`muster clean`: which runs are removed, and when it asks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from muster.cli.errors import run_command_line
from muster.cli.main import cli


def muster(*args: str) -> int:
    return run_command_line(cli, args)


def test_a_dry_run_lists_runs_and_removes_nothing(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(runs_dir.rglob("*"))
    assert muster("clean", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "old" in out and "output kept" in out and "young" not in out and "1 run " in out
    assert sorted(runs_dir.rglob("*")) == before


def test_without_a_terminal_nothing_is_removed_without_yes(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(runs_dir.rglob("*"))
    assert muster("clean") == 1
    assert "give --yes" in capsys.readouterr().err
    assert sorted(runs_dir.rglob("*")) == before


@pytest.mark.parametrize(("answer", "gone"), [(True, True), (False, False)])
def test_on_a_terminal_it_asks_for_confirmation(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, gone: bool
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda text: answer)
    assert muster("clean", "--with-output") == 0
    assert (runs_dir / "old").exists() is not gone


def test_the_freed_space_is_printed_and_results_stay(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_y_is_yes(runs_dir: Path) -> None:
    assert muster("clean", "-y", "--with-output") == 0
    assert not (runs_dir / "old").exists()


def test_json_lists_what_is_removed_or_would_be(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert muster("clean", "--json", "--dry-run") == 0
    dry = json.loads(capsys.readouterr().out)
    assert muster("clean", "--json", "--yes") == 0
    done = json.loads(capsys.readouterr().out)
    assert (dry["dry_run"], done["dry_run"]) == (True, False) and dry["removed"] == done["removed"]
    (run,) = done["removed"]
    assert run["run"] == "old" and run["output_kept"] and run["bytes"] > 50_000 and done["failed"] == []
    assert not (runs_dir / "old" / "attempt-0" / "logs").exists()


def test_json_does_not_ask(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert muster("clean", "--json") == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["exit_code"] == 2 and "give --yes" in error["message"] and (runs_dir / "old").exists()


@pytest.mark.parametrize("age", ["30", "d", "-1d", "soon"])
def test_an_age_without_a_unit_or_sense_is_refused(
    runs_dir: Path, capsys: pytest.CaptureFixture[str], age: str
) -> None:
    assert muster("clean", "--older-than", age, "--yes") == 2
    assert "such as 30d or 12h" in capsys.readouterr().err
    assert (runs_dir / "old").exists()
