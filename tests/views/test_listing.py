"""One row per run for the list of runs."""

from __future__ import annotations

import os
from pathlib import Path

from tests.views.synthetic import START, SyntheticRun

from muster.rundir import RunPaths, write_json
from muster.views.listing import entry


def test_the_bar_of_an_ended_run_adds_up_to_its_duration(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.ends(code=3)
    row = entry(run.paths, START + 10_000.0)
    assert (row["run"], row["state"], row["live"], row["exit_code"], row["nodes"]) == ("r", "failed", False, 3, 2)
    assert [phase for phase, _ in row["bar"]] == ["pending", "launching", "driver", "finishing"]
    assert row["bar"][0] == ["pending", 30_000] and row["bar"][2] == ["driver", 90_000]
    assert sum(length for _, length in row["bar"]) == row["took"] == round(1000 * (run.now - START))


def test_a_live_run_lasts_until_now(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.write("running")
    row = entry(run.paths, START + 100.0)
    assert row["live"] and row["took"] == 100_000 and row["bar"][-1][0] == "driver"


def test_cycles_before_the_newest_count_as_lost(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2, spares=1)
    run.brings_up()
    run.loses(1)
    run.brings_up()
    run.ends()
    assert [phase for phase, _ in entry(run.paths, run.now)["bar"]][:3] == ["pending", "lost", "launching"]


def test_a_run_that_was_only_prepared_is_as_old_as_its_job_file(tmp_path: Path) -> None:
    run = RunPaths(str(tmp_path / "r"))
    os.mkdir(run.root)
    write_json(run.job, {"nodes": "many", "command": ["x", "--password", "verysecret1", "\x1b[2J", 7]})
    os.utime(run.job, (START, START))
    row = entry(run, START + 5.0)
    assert (row["asked"], row["took"], row["bar"], row["nodes"]) == (START, 5000, [["pending", 5000]], None)
    assert row["command"] == "x --password *** \N{REPLACEMENT CHARACTER}[2J"


def test_an_empty_directory_has_a_row_too(tmp_path: Path) -> None:
    assert entry(RunPaths(str(tmp_path / "nothing")), 5.0)["state"] == "pending"
