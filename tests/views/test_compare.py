"""Two bring-ups, figure by figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.views.synthetic import SyntheticRun, large_run

from muster.views.compare import SHORTEST_SHOWN_S, BringUpTimes, Row, bring_up, compare
from muster.views.record import RunReader


def test_two_bring_ups_are_compared_figure_by_figure(tmp_path: Path) -> None:
    quick, slow = SyntheticRun(tmp_path / "quick", 4), SyntheticRun(tmp_path / "slow", 4)
    quick.brings_up()
    slow.brings_up(slow=2)
    for run in (quick, slow):
        run.ends()
    rows = {row.what: row for row in compare(*(bring_up(RunReader(run.paths).read()) for run in (quick, slow)))}
    assert rows["Ray on the last node"].difference == pytest.approx(4.5, abs=0.01)
    assert rows["from request to driver"].difference == pytest.approx(4.5, abs=0.01)
    assert rows["pending"].difference == 0.0


def times(**figures: float) -> BringUpTimes:
    return BringUpTimes("r", "succeeded", 2, figures)


def test_rows_are_in_chronological_order_whatever_the_runs_have() -> None:
    first = times(services=2.0, submitted=1.0, another=4.0)
    second = times(pending=3.0)
    assert compare(first, second) == [
        Row("submitted", 1.0, None),
        Row("pending", None, 3.0),
        Row("services", 2.0, None),
        Row("another", 4.0, None),
    ]


def test_figures_too_short_to_matter_in_both_runs_are_left_out() -> None:
    below = SHORTEST_SHOWN_S / 2
    assert compare(times(pending=below), times(pending=below, submitted=0.0)) == []
    assert compare(times(pending=below), times(pending=1.0)) == [Row("pending", below, 1.0)]


def test_a_figure_that_only_one_run_has_has_no_difference() -> None:
    assert Row("services", 1.0, None).difference is Row("services", None, 1.0).difference is None
    assert Row("services", 1.0, 3.5).difference == 2.5


def test_of_a_run_with_several_cycles_the_first_bring_up_counts(tmp_path: Path) -> None:
    run = large_run(tmp_path / "r", nodes=8)
    found = bring_up(RunReader(run.paths).read())
    assert (found.run, found.state, found.nodes) == ("r", "succeeded", 8)
    assert found.figures["from request to driver"] == pytest.approx(found.figures["from job start to driver"] + 30.0)
    assert found.figures["the driver"] == pytest.approx(63.0)  # until the first node was lost
    assert found.figures["start-up of a node, slowest"] >= found.figures["start-up of a node, median"] > 0


def test_a_run_without_a_driver_has_the_figures_of_its_wait_only(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.tell("run", state="gathering")
    run.node(0, "arrived", 1.0)
    run.write("gathering")
    figures = bring_up(RunReader(run.paths, lambda: run.now + 60.0).read()).figures
    assert "from request to driver" not in figures and "the driver" not in figures
    assert figures["pending"] == 29.0 and figures["launching"] == pytest.approx(62.0)
