"""The data of runs for the page: read again only after changes, with a bounded memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.running import wait_for
from tests.views.synthetic import SyntheticRun

from muster.rundir import RunPaths
from muster.web import run_cache
from muster.web.run_cache import RunCache, signature


@pytest.fixture
def cache(tmp_path: Path) -> RunCache:
    return RunCache(tmp_path)


def ended(root: Path) -> SyntheticRun:
    run = SyntheticRun(root, nodes=2)
    run.brings_up()
    run.ends()
    return run


def live(root: Path) -> SyntheticRun:
    run = SyntheticRun(root, nodes=2)
    run.brings_up()
    run.write("running")
    return run


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the runs whose row of the list was made, in order."""
    made: list[str] = []
    entry = run_cache.entry

    def counted(run: RunPaths, now: float) -> dict[str, Any]:
        made.append(run.run_id)
        return entry(run, now)

    monkeypatch.setattr(run_cache, "entry", counted)
    return made


def test_runs_are_listed_newest_first_and_found_only_by_their_id(cache: RunCache, tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c")):
        os.utime(ended(tmp_path / name).paths.job, (number, number))
    assert [run.run_id for run in cache.runs()] == ["c", "b", "a"]
    found = cache.find("b")
    assert found is not None and found.root == str(tmp_path.resolve() / "b")
    for name in ("", "..", "b/", "./b", str(tmp_path / "b"), "d"):
        assert cache.find(name) is None


def test_no_more_runs_than_the_limit_are_listed(
    cache: RunCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "MAX_LISTED", 2)
    for number, name in enumerate(("a", "b", "c")):
        os.utime(ended(tmp_path / name).paths.job, (number, number))
    assert [row["run"] for row in cache.listing()] == ["c", "b"]


def test_a_row_of_an_ended_run_is_made_again_only_after_a_change(
    cache: RunCache, tmp_path: Path, reads: list[str]
) -> None:
    run = ended(tmp_path / "r")
    assert cache.listing() == cache.listing()
    assert reads == ["r"]
    os.utime(run.attempt.outcome, (1, 1))
    cache.listing()
    assert reads == ["r", "r"]


def test_a_row_of_a_live_run_is_made_at_every_request(cache: RunCache, tmp_path: Path, reads: list[str]) -> None:
    live(tmp_path / "r")
    cache.listing()
    cache.listing()
    assert reads == ["r", "r"]


def test_the_page_of_an_ended_run_is_kept_and_its_report_is_written(cache: RunCache, tmp_path: Path) -> None:
    run = ended(tmp_path / "r")
    first = cache.model(run.paths)
    assert first["dashboard"] is None
    wait_for("the report", lambda: os.path.exists(run.paths.report))
    assert cache.model(run.paths) is first  # the report is no change of the run
    os.utime(run.attempt.outcome, (1, 1))
    assert cache.model(run.paths) is not first


def test_the_page_of_a_live_run_is_made_at_every_request_and_has_no_report(cache: RunCache, tmp_path: Path) -> None:
    run = live(tmp_path / "r")
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(threading, "Thread")  # which would write the report
        assert cache.model(run.paths) is not cache.model(run.paths)
    assert not os.path.exists(run.paths.report)


def test_only_a_few_pages_and_readers_are_kept(
    cache: RunCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "MAX_MODELS", 2)
    monkeypatch.setattr(run_cache, "MAX_READERS", 2)
    runs = [ended(tmp_path / name) for name in ("a", "b", "c")]
    first, second, third = (cache.model(run.paths) for run in runs)
    assert cache.model(runs[2].paths) is third and cache.model(runs[1].paths) is second
    assert cache.model(runs[0].paths) is not first
    for run in runs:
        wait_for("its report", lambda run=run: os.path.exists(run.paths.report))


def test_all_requests_for_a_run_share_one_reader(
    cache: RunCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, made = live(tmp_path / "r"), []
    reader = run_cache.RunReader
    monkeypatch.setattr(run_cache, "RunReader", lambda paths: made.append(reader(paths)) or made[-1])
    read = []
    monkeypatch.setattr(reader, "read", lambda self, real=reader.read: read.append(self) or real(self))
    cache.record(run.paths)
    cache.record(run.paths)
    assert read == [made[0], made[0]]


def test_the_signature_changes_with_the_run_s_files_and_not_with_those_of_viewers(tmp_path: Path) -> None:
    run = live(tmp_path / "r")
    before = signature(run.paths)
    Path(run.paths.metrics).write_text("x")
    Path(run.paths.report).write_text("x")
    Path(run.paths.report + ".tmp").write_text("x")
    assert signature(run.paths) == before
    run.tell("note", text="something new")
    run.write("running")
    assert signature(run.paths) != before


def test_a_run_that_is_removed_has_an_empty_signature(tmp_path: Path) -> None:
    assert signature(RunPaths(str(tmp_path / "none"))) == ()


def test_a_change_is_sent_once_and_silence_is_filled_with_comments(
    cache: RunCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "CHANGE_POLL_S", 0.0)
    monkeypatch.setattr(run_cache, "KEEP_ALIVE_S", -1.0)
    run = live(tmp_path / "r")
    changes = cache.changes(run.paths)
    changed, comment = b"event: changed\ndata: {}\n\n", b": still here\n\n"
    assert [next(changes), next(changes), next(changes)] == [changed, comment, comment]
    run.tell("note", text="something new")
    run.write("running")
    assert [next(changes), next(changes)] == [changed, comment]
