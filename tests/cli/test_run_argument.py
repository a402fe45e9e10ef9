"""The RUN argument: by id, job id or default; the errors of commands that act on a run."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from tests.cli.invocation import Invoke, StartRun

from muster.cli.run_argument import resolve_run, run_errors
from muster.errors import BackendError
from muster.runs.index import NoSuchRun
from muster.runs.lookup import NotRunning


def test_a_run_is_found_by_id_by_prefix_by_job_id_and_as_the_newest(make_run: StartRun, tmp_path: Path) -> None:
    old, new = make_run("old").submitted(job_id="17"), make_run("new").submitted(job_id="18")
    runs_dir = tmp_path / "muster-runs"
    assert [resolve_run(name, runs_dir).root for name in ("old", "ol", "17")] == 3 * [old.root]
    assert resolve_run(None, runs_dir).root == new.root


def test_a_run_that_does_not_exist_is_an_error_with_a_remedy(make_run: StartRun, tmp_path: Path) -> None:
    make_run("train")
    with pytest.raises(click.ClickException, match="no run or job other; `muster runs` lists them"):
        resolve_run("other", tmp_path / "muster-runs")


def test_without_runs_the_error_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="--runs-dir"):
        resolve_run(None, tmp_path)


@pytest.mark.parametrize("error", [NoSuchRun, NotRunning, BackendError])
def test_errors_about_a_run_become_exit_code_1(error: type[Exception]) -> None:
    with pytest.raises(click.ClickException, match="why") as raised, run_errors():
        raise error("why")
    assert raised.value.exit_code == 1


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), run_errors():
        raise ZeroDivisionError


@pytest.mark.parametrize("command", ["status", "logs", "report", "du"])
def test_commands_search_only_the_given_runs_directory(
    command: str, start_run: StartRun, tmp_path: Path, invoke: Invoke
) -> None:
    start_run("here")
    (tmp_path / "other").mkdir()
    done = invoke(command, "here", "--runs-dir", "other")
    assert (done.code, done.out) == (1, "") and "no runs found here" in done.err
