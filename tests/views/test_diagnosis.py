"""Slow and missing nodes, failures, the current wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.views.drawing import drawn
from tests.views.service_runs import read, waiting
from tests.views.synthetic import START, SyntheticRun, large_run

from muster.runs.monitor import STATUS_STALE_S
from muster.views.diagnosis import (
    failures,
    last_phases,
    missing,
    node_seconds,
    resources,
    silence,
    slowest,
    waits_for,
)
from muster.views.phases import Phase
from muster.views.terminal import BringUpView, Top
from muster.views.timeline import build_timeline


def test_what_is_waited_for_names_the_service_and_its_nodes(tmp_path: Path) -> None:
    run = waiting(tmp_path / "r", nodes=5)
    record = read(run)
    waits = waits_for(record, build_timeline(record))
    assert waits is not None and waits[0] == "waiting for sandbox on gpu[0001-0004]"
    for view in (Top(run.paths, lambda: START + 100.0), BringUpView(run.paths, lambda: START + 100.0)):
        text = "\n".join(drawn(view))
        assert "waiting for sandbox on gpu[0001-0004], for" in text and "service sandbox: 1 of 5 ready" in text


def test_the_slowest_nodes_come_first_and_the_median_is_that_of_all(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 8)
    run.brings_up(slow=3)
    run.ends()
    (attempt,) = build_timeline(read(run)).attempts
    slow, usual = slowest(attempt, cycle=0, most=2)
    assert len(slow) == 2 and slow[0].node_index == 3 and slow[0].host == "gpu0003"
    assert slow[0].own == slow[0].launching + slow[0].starting > slow[1].own >= usual > 0
    assert slowest(attempt, cycle=7) == ([], 0.0)


def test_nodes_that_have_not_arrived_are_missing(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 3)
    run.tell("run", state="gathering")
    run.node(1, "arrived", 1.0)
    run.write("gathering")
    record = read(run)
    timeline = build_timeline(record)
    assert [node.host for node in missing(timeline.attempts[0])] == ["gpu0000", "gpu0002"]
    assert {phase: len(nodes) for phase, nodes in last_phases(timeline.attempts[0]).items()} == {
        Phase.LAUNCHING: 2,
        Phase.ARRIVED: 1,
    }
    assert waits_for(record, timeline) == ("waiting for nodes: gpu[0000,0002]", START + 30.0)


@pytest.mark.parametrize(
    ("state", "text"), [("running", "the driver runs"), ("finishing", "stopping everything"), ("succeeded", None)]
)
def test_the_current_wait_follows_the_state(tmp_path: Path, state: str, text: str | None) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.write(state)
    record = read(run)
    waits = waits_for(record, build_timeline(record))
    assert (waits[0] if waits else None) == text


def test_the_time_in_the_queue_is_no_use_of_the_allocation(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.ends()
    timeline = build_timeline(read(run))
    sums = node_seconds(timeline)
    assert Phase.PENDING not in sums and sums[Phase.DRIVER] == pytest.approx(180.0)
    assert sum(sums.values()) == pytest.approx(2 * (timeline.wall - 30.0))


def test_a_live_run_is_silent_if_a_leader_would_have_published_since(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.write("running")
    assert silence(read(run, run.now + STATUS_STALE_S)) is None
    assert silence(read(run, run.now + STATUS_STALE_S + 1.0)) == STATUS_STALE_S + 1.0
    run.write("failed")
    assert silence(read(run, run.now + 1000.0)) is None


def test_failures_are_listed_in_order_and_the_last_error_once(tmp_path: Path) -> None:
    run = large_run(tmp_path / "r", nodes=12)
    found = failures(read(run))
    assert [(one.cycle, one.node_index, one.tail[-1]) for one in found] == [(0, 7, "Aborted"), (1, 6, "Aborted")]
    run.error = {"rank": 6, "host": "gpu0006", "phase": "running", "reason": found[1].reason, "log_tail": []}
    run.write("failed")
    assert failures(read(run)) == found
    run.error = {**run.error, "reason": "another one"}
    run.write("failed")
    assert [one.reason for one in failures(read(run), lambda attempt, node_index: ["tail"])][2:] == ["another one"]
    assert failures(read(run), lambda attempt, node_index: [f"{attempt}/{node_index}"])[2].tail == ("0/6",)


def test_a_failure_of_odd_types_is_shown_with_empty_values(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 1)
    run.tell("failure", rank="x", host=[], phase=None, reason={}, log_tail=["ok", 7])
    run.write("running")
    (failure,) = failures(read(run))
    assert (failure.node_index, failure.host, failure.reason, failure.tail) == (None, "", "", ("ok",))


@pytest.mark.parametrize(
    ("job", "rows"),
    [
        ({"nodes": 4, "gpus_per_node": 8, "mem": "1G"}, [("", 4, None, 8, "1G", None)]),
        (
            {"nodes": 4, "gres": "gpu:2", "spares": 1},
            [("", 4, None, "gpu:2", None, None), ("spares", 1, None, "gpu:2", None, None)],
        ),
        (
            {"mem": "1G", "partition": "a", "groups": [{"name": "big", "nodes": 2, "cpus_per_node": 4, "mem": "9G"}]},
            [("big", 2, 4, None, "9G", "a")],
        ),
        ({}, [("", 0, None, None, None, None)]),
    ],
)
def test_requested_resources_have_one_row_per_group_and_one_for_spares(
    job: dict[str, Any], rows: list[tuple[Any, ...]]
) -> None:
    assert [tuple(vars(row).values()) for row in resources(job)] == rows
