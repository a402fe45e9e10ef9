"""Services in every view: what the driver waits for, ready instances, the load of sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.views.drawing import drawn
from tests.views.service_runs import read, waiting
from tests.views.synthetic import HOSTILE, START, SyntheticRun, load
from tests.views.timelines import phases, seen_of

from muster.views.metrics import metrics
from muster.views.phases import Phase
from muster.views.report import report
from muster.views.services import services
from muster.views.summary import summary
from muster.views.terminal import Top, plain_line
from muster.views.timeline import build_timeline


def test_a_node_whose_service_is_not_ready_is_in_the_phase_services_until_it_is(tmp_path: Path) -> None:
    run = waiting(tmp_path / "r")
    (attempt,) = seen_of(run.paths, START + 100.0).attempts
    assert [phases(node)[-1] for node in attempt.nodes] == ["joined", "services", "services"]
    run.service("sandbox", 2, after=3.0)
    run.service("sandbox", 1, after=4.0)
    run.tell("run", state="running")
    run.tell("driver_start", 0.5)
    run.ends()
    (attempt,) = seen_of(run.paths).attempts
    assert phases(attempt.nodes[2])[3:] == ["arrived", "starting", "services", "joined", "driver", "finishing"]
    assert attempt.nodes[2].seconds(Phase.SERVICES) == pytest.approx(4.0)
    assert attempt.nodes[2].seconds(Phase.JOINED) == pytest.approx(4.5)


def test_a_service_without_a_gate_does_not_hold_the_driver(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2, services=("tensorboard",))
    run.services["tensorboard"] = {}
    run.brings_up()
    run.service("tensorboard", 1, "restarting", after=1.0, restarts=1, reason="exited with 3")
    run.write("running")
    (attempt,) = seen_of(run.paths).attempts
    assert not any("services" in phases(node) for node in attempt.nodes)
    assert [mark.text for mark in attempt.marks if mark.kind == "service"] == ["tensorboard on gpu0001: restarting"]
    text = "\n".join(drawn(Top(run.paths, lambda: run.now + 1.0)))
    assert (
        "service tensorboard: 1 of 2 ready, restarting on gpu0001, 1 restart; the driver does not wait for it" in text
    )


def test_a_service_that_was_ready_and_succeeded_does_not_hold_the_driver(tmp_path: Path) -> None:
    run = waiting(tmp_path / "r")
    run.service("sandbox", 1, after=1.0)
    run.service("sandbox", 1, "ended", after=1.0, reason="exited with 0")
    run.service("sandbox", 2, "restarting", after=1.0, restarts=1)
    run.write("starting")
    (attempt,) = seen_of(run.paths, START + 100.0).attempts
    assert [phases(node)[-1] for node in attempt.nodes] == ["joined", "joined", "services"]
    assert attempt.cycles[0].path[-1].what == "waiting for sandbox on gpu0002"


def test_a_failed_service_ends_the_path_and_is_shown_with_its_log_tail(tmp_path: Path) -> None:
    run = waiting(tmp_path / "r")
    run.service("sandbox", 1, after=1.0)
    reason = "service sandbox was not ready on gpu0002 within 300 s (its deadline): nothing listens on port 7001"
    run.error = {"rank": 2, "host": "gpu0002", "phase": "service", "reason": reason, "log_tail": ["bind: in use"]}
    run.tell("run", 290.0, state="finishing")
    run.service("sandbox", 2, "failed", reason=reason)
    run.tell("failure", **run.error)
    for node_index in range(3):
        run.node(node_index, "gone", 0.1)
    run.ends(code=125, after=0.0)
    record = read(run)
    (cycle,) = seen_of(run.paths).attempts[0].cycles
    assert cycle.path[-1].what == "waiting for sandbox on gpu0002" and cycle.path[-1].seconds > 290.0
    lines = summary(record)
    assert any(line.startswith("failure after") and "not ready on gpu0002" in line for line in lines)
    assert "    | bind: in use" in lines
    assert "service sandbox: 2 of 3 ready, failed on gpu0002" in lines
    assert f"    gpu0002 (index 2): failed at http://gpu0002:7001: {reason}" in lines
    assert "bind: in use" in report(record)


def test_a_run_that_is_over_shows_how_each_instance_was_last(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 3, services=("sandbox",))
    run.brings_up()
    run.service("sandbox", 1, "restarting", after=5.0, restarts=1, reason="was ended by signal 9")
    run.service("sandbox", 1, "ready", after=5.0, restarts=1)
    run.ends()
    (service,) = services(read(run))
    assert (service.ready, service.wanted, service.restarts) == (3, 3, 1)
    assert [(one.node_index, one.state, one.restarts, one.reason) for one in service.instances][1] == (
        1,
        "ready",
        1,
        "",
    )


def test_a_new_cycle_begins_with_no_service_ready(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2, spares=1, services=("sandbox",))
    run.brings_up()
    run.loses(1)
    run.services["sandbox"] = {}
    run.brings_up()
    run.ends()
    (attempt,) = seen_of(run.paths).attempts
    for cycle in (0, 1):
        assert attempt.nodes[0].seconds(Phase.SERVICES, cycle) > 0
    assert attempt.cycles[1].path[-2].phase is Phase.SERVICES
    assert "gpu0002" in {one.host for one in services(read(run))[0].instances}  # the spare has the lost one's


ODD = (None, [], 7, "x", {"sandbox": 7}, {"sandbox": {"instances": [7, {}]}}, {"a": {"wanted": []}})


@pytest.mark.parametrize("odd", ODD)
def test_malformed_service_status_is_tolerated(tmp_path: Path, odd: object) -> None:
    run = waiting(tmp_path / "r")
    run.tell("service", service=7, rank="x", state=[], reason={})
    run.tell("service", service="sandbox", rank=1, state=[], reason={}, load=7)
    run.write("starting", services=odd)
    record = read(run)
    assert "<script>" in report(record) and metrics(record) and summary(record) and drawn(Top(run.paths))


def test_nothing_hostile_in_services_reaches_a_terminal_or_leaves_its_place(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", len(HOSTILE), hosts=[*HOSTILE], services=("sandbox", *HOSTILE))
    run.brings_up()
    for node_index, text in enumerate(HOSTILE):
        run.service(text, node_index, text, url=text, reason=text, load=load(1))
        run.service("sandbox", node_index, "restarting", reason=text)
    run.write("running")
    record = read(run)
    shown = "\n".join([*drawn(Top(run.paths), 300, 200), *summary(record), plain_line(record, build_timeline(record))])
    assert [char for char in shown + metrics(record) if not char.isprintable() and char not in "\n\t"] == []
    page = report(record)
    page.encode()
    assert page.count("<script") == 7
