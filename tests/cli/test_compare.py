"""`muster compare`: the bring-ups of two runs, figure by figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke, StartRun
from tests.views.synthetic import SyntheticRun


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs that differ in one slow node, by five seconds less its share of the others' two."""
    monkeypatch.chdir(tmp_path)
    for name, slow in (("quick", None), ("slow", 3)):
        run = SyntheticRun(tmp_path / "muster-runs" / name, nodes=4)
        run.brings_up(slow)
        run.ends()


def test_figures_of_both_runs_are_shown_with_their_difference(invoke: Invoke) -> None:
    done = invoke("compare", "quick", "slow")
    header, *rows = done.out.splitlines()
    assert done.code == 0 and header.split("  ")[0].strip() == "seconds"
    assert "quick (4 nodes, succeeded)" in header and "slow (4 nodes, succeeded)" in header
    (row,) = [row for row in rows if row.startswith("from job start to driver")]
    first, second, difference = row.split()[-3:]
    assert float(second) - float(first) == pytest.approx(float(difference), abs=0.011) and difference == "+4.50"


def test_json_has_every_figure_in_seconds(invoke: Invoke) -> None:
    found = json.loads(invoke("compare", "quick", "slow", "--json").out)
    assert found["runs"] == [{"run": name, "state": "succeeded", "nodes": 4} for name in ("quick", "slow")]
    (row,) = [row for row in found["seconds"] if row["what"] == "from job start to driver"]
    assert row["second"] - row["first"] == pytest.approx(row["difference"]) == pytest.approx(4.5, abs=0.01)


def test_a_figure_that_one_run_lacks_is_a_dash(make_run: StartRun, invoke: Invoke) -> None:
    make_run("early").submitted(kind="local", backend="local").begins().ends(1, "failed")
    done = invoke("compare", "quick", "early")
    (row,) = [row for row in done.out.splitlines() if row.startswith("from job start to driver")]
    assert row.split()[-1] == "-" and row.split()[-2] != "-"


def test_two_runs_are_needed_and_must_exist(invoke: Invoke) -> None:
    assert invoke("compare", "quick").code == 2
    done = invoke("compare", "quick", "other")
    assert done.code == 1 and "no run or job other" in done.err
