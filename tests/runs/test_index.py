"""Finding a run: the newest, by id or its prefix, by Slurm job id, by path; from any directory."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.conftest import FakeRun

from muster.rundir import RunPaths
from muster.runs.index import NoSuchRun, all_runs, find_run, private_runs, register_run

MakeRun = Callable[..., FakeRun]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in the directory that contains muster-runs, with a separate index of runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def found(name: str | None, runs_dir: Path | None = None) -> str:
    return find_run(name, runs_dir).root


def test_without_a_name_the_newest_is_meant_whatever_it_is_called(make_run: MakeRun) -> None:
    make_run("b-1")
    newest = make_run("a-2")
    assert found(None) == newest.root


def test_runs_are_listed_oldest_first(make_run: MakeRun) -> None:
    for name in ("c", "a", "b"):
        make_run(name)
    assert [run.run_id for run in all_runs()] == ["c", "a", "b"]


def test_a_run_is_found_by_its_id(make_run: MakeRun) -> None:
    wanted, _ = make_run("train-1"), make_run("train-2")
    assert found("train-1") == wanted.root


def test_an_id_that_is_the_beginning_of_another_is_not_ambiguous(make_run: MakeRun) -> None:
    wanted, _ = make_run("train"), make_run("train-2")
    assert found("train") == wanted.root


def test_a_run_is_found_by_its_slurm_job_id(make_run: MakeRun) -> None:
    wanted = make_run("train-1").submitted(job_id="4711")
    make_run("train-2").submitted(job_id="4712")
    make_run("train-3")  # not submitted yet
    assert found("4711") == wanted.root


def test_a_job_id_goes_before_the_beginning_of_an_id(make_run: MakeRun) -> None:
    make_run("4711-experiment")
    wanted = make_run("train-1").submitted(job_id="4711")
    assert found("4711") == wanted.root


def test_a_run_is_found_by_a_unique_beginning(make_run: MakeRun) -> None:
    make_run("train-20260101T000000-ab12")
    wanted = make_run("train-20260102T000000-cd34")
    assert found("train-20260102") == wanted.root


def test_a_beginning_of_several_is_refused_with_their_names(make_run: MakeRun) -> None:
    make_run("train-1"), make_run("train-2"), make_run("eval-1")
    with pytest.raises(NoSuchRun, match="train- is ambiguous: it could be train-1, train-2"):
        find_run("train-")


def test_a_name_that_fits_nothing_is_refused(make_run: MakeRun) -> None:
    make_run("train-1")
    with pytest.raises(NoSuchRun, match="no run or job eval"):
        find_run("eval")


@pytest.mark.parametrize("name", [None, "train"])
def test_where_there_are_no_runs_that_is_said(name: str | None) -> None:
    with pytest.raises(NoSuchRun, match="no runs found here"):
        find_run(name)


def test_the_run_that_was_asked_for_is_named_where_there_are_no_runs() -> None:
    with pytest.raises(NoSuchRun, match="no run or job nosuch: no runs found here; name the runs directory with"):
        find_run("nosuch")


def test_a_run_is_found_by_its_path(make_run: MakeRun, here: Path) -> None:
    elsewhere = make_run("train-1", here / "elsewhere")
    assert found(elsewhere.root) == elsewhere.root
    assert found("elsewhere/train-1") == elsewhere.root


def test_a_remembered_run_is_found_from_any_directory(
    make_run: MakeRun, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("train-1")
    register_run(run)
    monkeypatch.chdir("/")
    assert found(None) == run.root
    register_run(run)  # again: no error


def test_a_run_known_by_two_ways_is_listed_once(make_run: MakeRun) -> None:
    register_run(make_run("train-1"))
    assert len(all_runs()) == 1


def test_a_run_whose_directory_is_gone_is_forgotten(make_run: MakeRun) -> None:
    gone, left = make_run("train-1"), make_run("train-2")
    register_run(gone)
    shutil.rmtree(gone.root)
    assert [run.root for run in all_runs()] == [left.root]


def test_a_home_that_cannot_be_written_costs_only_the_index(make_run: MakeRun, here: Path) -> None:
    (here / "state").write_text("not a directory")
    register_run(make_run("train-1"))
    assert len(all_runs()) == 1


def test_with_a_runs_directory_named_only_its_runs_count(make_run: MakeRun, here: Path) -> None:
    make_run("train-1")
    other = make_run("train-2", here / "other")
    assert [run.root for run in all_runs(here / "other")] == [other.root]
    with pytest.raises(NoSuchRun):
        find_run("train-1", here / "other")


def test_the_runs_directory_of_the_environment_counts(
    make_run: MakeRun, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("train-1", here / "scratch")
    monkeypatch.setenv("MUSTER_RUNS_DIR", str(here / "scratch"))
    assert found(None) == run.root


def test_what_is_no_run_is_passed_over(make_run: MakeRun, here: Path) -> None:
    run = make_run("train-1")
    os.mkdir(here / "muster-runs" / "empty")
    (here / "muster-runs" / "notes.txt").write_text("not a run")
    (here / "muster-runs" / "dangling").symlink_to("/no/such/run")
    assert [each.root for each in all_runs()] == [run.root]


@pytest.mark.parametrize("contents", ["", "[]", "null", "{"])
def test_a_run_with_a_broken_submission_does_not_hide_the_others(make_run: MakeRun, contents: str) -> None:
    Path(make_run("broken").submission).write_text(contents)
    wanted = make_run("train-1").submitted(job_id="4711")
    assert found("4711") == wanted.root


def test_a_run_that_vanishes_while_it_is_listed_does_not_hide_the_others(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing, left = make_run("train-1"), make_run("train-2")
    real = os.stat

    def stat(path: str, *more: object, **options: object) -> os.stat_result:
        if path == vanishing.job:
            raise FileNotFoundError(path)
        return real(path, *more, **options)

    monkeypatch.setattr(os, "stat", stat)
    assert RunPaths(left.root) in all_runs()


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make what is inside a directory unreadable, also for root, which runs the tests."""
    stat, listdir, denied = os.stat, os.listdir, []

    def refuse(path: str) -> None:
        if any(os.path.join(os.getcwd(), path).startswith(f"{directory}/") for directory in denied):
            raise PermissionError(13, "Permission denied", path)

    def checked_stat(path: str, **options: Any) -> os.stat_result:
        refuse(path)
        return stat(path, **options)

    def checked_list(path: str) -> list[str]:
        refuse(f"{path}/")
        return listdir(path)

    monkeypatch.setattr(os, "stat", checked_stat)
    monkeypatch.setattr(os, "listdir", checked_list)
    return denied.append


def test_a_private_run_of_another_user_is_counted_and_named_but_not_listed(
    make_run: MakeRun, deny: Callable[[str], None]
) -> None:
    own, other = make_run("own-1"), make_run("other-1")
    deny(other.root)
    assert [run.run_id for run in all_runs()] == ["own-1"] and [path.name for path in private_runs()] == ["other-1"]
    assert found(None) == own.root
    owner = pwd.getpwuid(os.getuid()).pw_name
    for name in ("other-1", other.root):
        with pytest.raises(NoSuchRun, match=rf"permission denied: .*other-1 belongs to {owner}, and runs are private"):
            find_run(name)


def test_a_runs_directory_that_cannot_be_read_is_named(
    here: Path, make_run: MakeRun, deny: Callable[[str], None]
) -> None:
    make_run("own-1")
    deny(str(here / "muster-runs"))
    with pytest.raises(NoSuchRun, match="muster-runs cannot be read: Permission denied"):
        all_runs(here / "muster-runs")
