"""Services in every view: what the driver waits for, ready instances, the load of sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.views.drawing import drawn
from tests.views.synthetic import HOSTILE, START, SyntheticRun, load
from tests.views.timelines import phases, seen_of

from muster.views.compare import bring_up
from muster.views.diagnosis import waits_for
from muster.views.metrics import metrics
from muster.views.model import page_model
from muster.views.phases import Phase
from muster.views.record import RunReader, RunRecord
from muster.views.report import report
from muster.views.service_gate import gate_of
from muster.views.service_lines import instance_lines
from muster.views.services import services
from muster.views.summary import summary
from muster.views.terminal import BringUpView, Top, plain_line
from muster.views.timeline import build_timeline


def waiting(root: Path, nodes: int = 3) -> SyntheticRun:
    """Ray is up everywhere; the sandbox is ready on the first node alone."""
    run = SyntheticRun(root, nodes, services=("sandbox",))
    run.cycles.append({"cycle": 0, "start": run.now, "end": None, "reason": None})
    run.tell("run", state="gathering")
    for rank in range(nodes):
        run.node(rank, "arrived", 1.0)
    run.tell("run", state="starting")
    for rank in range(nodes):
        run.node(rank, "starting")
        run.node(rank, "ready", 2.0)
    run.service("sandbox", 0, after=1.0)
    run.write("starting")
    return run


def read(run: SyntheticRun, now: float = START + 100.0) -> RunRecord:
    return RunReader(run.paths, lambda: now).read()


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


def test_the_critical_path_goes_through_the_service_that_was_ready_last(tmp_path: Path) -> None:
    run = waiting(tmp_path / "r")
    run.service("sandbox", 1, after=1.0)
    run.service("sandbox", 2, after=4.0)
    run.tell("run", state="running")
    run.tell("driver_start", 0.5)
    run.ends()
    (cycle,) = seen_of(run.paths).attempts[0].cycles
    assert [(step.phase.value, step.rank, step.what) for step in cycle.path[-3:]] == [
        ("launching", 2, "gpu0002 starts"),
        ("services", 2, "waiting for sandbox on gpu0002"),
        ("joined", None, "the driver starts"),
    ]
    assert cycle.path[-2].start == START + 34.0  # with its arrival: it did not wait for Ray
    assert bring_up(read(run)).figures["services"] == pytest.approx(cycle.path[-2].seconds)


def test_what_is_waited_for_names_the_service_and_its_nodes(tmp_path: Path) -> None:
    run = waiting(tmp_path / "r", nodes=5)
    record = read(run)
    waits = waits_for(record, build_timeline(record))
    assert waits is not None and waits[0] == "waiting for sandbox on gpu[0001-0004]"
    for view in (Top(run.paths, lambda: START + 100.0), BringUpView(run.paths, lambda: START + 100.0)):
        text = "\n".join(drawn(view))
        assert "waiting for sandbox on gpu[0001-0004], for" in text and "service sandbox: 1 of 5 ready" in text


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
    for rank in range(3):
        run.node(rank, "gone", 0.1)
    run.ends(code=125, after=0.0)
    record = read(run)
    (cycle,) = seen_of(run.paths).attempts[0].cycles
    assert cycle.path[-1].what == "waiting for sandbox on gpu0002" and cycle.path[-1].seconds > 290.0
    lines = summary(record)
    assert any(line.startswith("failure after") and "not ready on gpu0002" in line for line in lines)
    assert "    | bind: in use" in lines
    assert "service sandbox: 2 of 3 ready, failed on gpu0002" in lines
    assert f"    gpu0002 (rank 2): failed at http://gpu0002:7001: {reason}" in lines
    assert "bind: in use" in report(record)


def test_a_run_that_is_over_shows_how_each_instance_was_last(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 3, services=("sandbox",))
    run.brings_up()
    run.service("sandbox", 1, "restarting", after=5.0, restarts=1, reason="was ended by signal 9")
    run.service("sandbox", 1, "ready", after=5.0, restarts=1)
    run.ends()
    (service,) = services(read(run))
    assert (service.ready, service.wanted, service.restarts) == (3, 3, 1)
    assert [(one.rank, one.state, one.restarts, one.reason) for one in service.instances][1] == (1, "ready", 1, "")


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


def busy(root: Path, nodes: int = 4) -> SyntheticRun:
    run = SyntheticRun(root, nodes, services=("sandbox",))
    run.brings_up()
    for rank in range(nodes):
        queued = 5 if rank == 2 else 0
        run.service("sandbox", rank, load=load(8 if rank == 2 else rank % 2, queued=queued))
    run.write("running")
    return run


def test_the_load_of_sandboxes_is_summed_and_the_busiest_node_named(tmp_path: Path) -> None:
    run = busy(tmp_path / "r")
    text = "\n".join(drawn(Top(run.paths, lambda: run.now + 1.0), 120))
    assert "service sandbox: 4 of 4 ready" in text
    assert "load: 10 of 32 busy, 5 queued, 25.0/s, 400 executed (8 failed)" in text
    assert "busiest gpu0002: 8 of 8 busy, 5 queued" in text
    assert "\n    ▁▂█▂" in text
    ascii_only = drawn(Top(run.paths, lambda: run.now + 1.0), encoding="ascii")
    assert "    .1#1" in ascii_only
    record = read(run, run.now + 1.0)
    assert plain_line(record, build_timeline(record)) == "running: 4 driver: sandbox 4/4: the driver runs"


def test_a_sandbox_whose_endpoint_has_a_problem_is_named_with_it_among_many(tmp_path: Path) -> None:
    run = busy(tmp_path / "r", 40)
    run.service("sandbox", 17, load=load(0, gateway_problem="members.json: version is -1"))
    run.write("running")
    (sandbox,) = services(read(run))
    assert list(instance_lines(sandbox)) == [
        f"gpu0017 (rank 17): ready at {sandbox.instances[17].url}: members.json: version is -1"
    ]


@pytest.mark.parametrize("width", [20, 80, 200])
def test_the_load_of_a_thousand_nodes_takes_two_rows(tmp_path: Path, width: int) -> None:
    run = busy(tmp_path / "r", nodes=1000)
    lines = drawn(Top(run.paths, lambda: run.now + 1.0), width, 40)
    bars = [line for line in lines if line.startswith("    ") and set(line.strip()) <= set("▁▂▃▄▅▆▇█") and line.strip()]
    assert len(bars) == 2 and "█" in bars[0] and all(len(line) <= width for line in lines)


def test_metrics_have_readiness_restarts_and_the_sandboxes_rates(tmp_path: Path) -> None:
    lines = metrics(read(busy(tmp_path / "r"))).splitlines()
    for line in (
        'muster_run_services_ready{run="r",service="sandbox"} 4',
        'muster_run_services_wanted{run="r",service="sandbox"} 4',
        'muster_run_service_restarts{run="r",service="sandbox"} 0',
        'muster_run_sandbox_executions{run="r",service="sandbox",host="gpu0002"} 100',
        'muster_run_sandbox_rate{run="r",service="sandbox",host="gpu0002"} 20',
        'muster_run_sandbox_busy{run="r",service="sandbox",host="gpu0002"} 8',
        'muster_run_sandbox_queued{run="r",service="sandbox",host="gpu0002"} 5',
        'muster_run_bringup_seconds{run="r",phase="services"} 8.25',
    ):
        assert line in lines, line


def test_the_model_has_each_instance_with_its_log(tmp_path: Path) -> None:
    (service,) = page_model(read(busy(tmp_path / "r")))["services"]
    assert (service["ready"], service["wanted"], service["load"]["running"]) == (4, 4, 10)
    assert service["instances"][2]["log"] == "attempt-0/logs/services/sandbox/gpu0002.log"
    assert service["instances"][2]["load"]["queued"] == 5


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
    for rank, text in enumerate(HOSTILE):
        run.service(text, rank, text, url=text, reason=text, load=load(1))
        run.service("sandbox", rank, "restarting", reason=text)
    run.write("running")
    record = read(run)
    shown = "\n".join([*drawn(Top(run.paths), 300, 200), *summary(record), plain_line(record, build_timeline(record))])
    assert [char for char in shown + metrics(record) if not char.isprintable() and char not in "\n\t"] == []
    page = report(record)
    page.encode()
    assert page.count("<script") == 7


@pytest.mark.parametrize(
    ("scope", "ranks"), [("all", [0, 1, 2, 3]), ("head", [0]), ("any", [3]), (2, [2, 3]), (9, [0, 1, 2, 3]), ([], [])]
)
def test_the_scope_decides_which_nodes_have_the_gate(scope: object, ranks: list[int]) -> None:
    gate = gate_of({"nodes": 4, "services": {"web": {"scope": scope}, "tensorboard": {"scope": "all", "gate": False}}})
    assert [rank for rank in range(4) if gate.services_on(rank) == ("web",)] == ranks
    assert gate.services_on(None) == ()
