"""`muster report`: where the report is written, and its summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke
from tests.views.synthetic import SyntheticRun, large_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyntheticRun:
    monkeypatch.chdir(tmp_path)
    return large_run(tmp_path / "muster-runs" / "train", nodes=8)


def test_the_report_is_written_in_the_run_directory_and_its_path_printed(run: SyntheticRun, invoke: Invoke) -> None:
    done = invoke("report")
    assert (done.code, done.out) == (0, f"{run.paths.report}\n")
    assert Path(run.paths.report).read_text().startswith("<!doctype html>")


def test_the_report_is_written_to_another_file(run: SyntheticRun, invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("report", "train", "-o", "mine.html").out == "mine.html\n"
    assert "<title>train: succeeded</title>" in (tmp_path / "mine.html").read_text()
    assert not Path(run.paths.report).exists()


def test_the_file_is_named_as_for_render_and_the_earlier_names_work(
    run: SyntheticRun, invoke: Invoke, tmp_path: Path
) -> None:
    for option in ("--to", "--output", "-o"):
        assert invoke("report", option, f"{option}.html").out == f"{option}.html\n"
        assert (tmp_path / f"{option}.html").exists()
    shown = invoke("report", "--help").out
    assert "--to FILE" in shown and "--output" not in shown


def test_json_is_the_data_of_the_report(run: SyntheticRun, invoke: Invoke) -> None:
    data = json.loads(invoke("report", "--json").out)
    assert data["run"] == "train" and not Path(run.paths.report).exists()


def test_the_report_is_printed(run: SyntheticRun, invoke: Invoke) -> None:
    out = invoke("report", "--output", "-").out
    assert out.startswith("<!doctype html>") and out.endswith("</html>\n")


def test_a_summary_is_printed_and_no_file_written(run: SyntheticRun, invoke: Invoke) -> None:
    out = invoke("report", "--text").out
    assert "train" in out.splitlines()[0] and "succeeded" in out and "<" not in out
    assert not Path(run.paths.report).exists()


def test_a_file_that_cannot_be_written_is_named_with_a_remedy(run: SyntheticRun, invoke: Invoke) -> None:
    done = invoke("report", "-o", "/nonexistent/report.html")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "muster: error: /nonexistent/report.html cannot be written: No such file or directory; "
        "give another file with --to\n"
    )
