"""Metrics of runs in Prometheus' text format."""

from __future__ import annotations

import re
from pathlib import Path

from tests.views.service_runs import busy, read
from tests.views.synthetic import SyntheticRun, hostile_run, large_run

from muster.views.metrics import FAMILIES, STATES, metrics
from muster.views.record import RunReader


def test_metrics_are_lines_that_prometheus_reads(tmp_path: Path) -> None:
    text = metrics(
        RunReader(hostile_run(tmp_path / 'a"b').paths).read(), RunReader(large_run(tmp_path / "l", 12).paths).read()
    )
    sample = re.compile(r'muster_\w+\{run="(?:[^"\\\n]|\\.)*"(?:,\w+="(?:[^"\\\n]|\\.)*")*\} -?\d+(\.\d+)?')
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines and [line for line in lines if not sample.fullmatch(line)] == []
    assert 'muster_run_restarts{run="l"} 2' in lines and 'muster_run_nodes{run="l",phase="lost"} 2' in lines


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


def test_exactly_one_state_of_a_run_is_1(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.write("running")
    lines = metrics(read(run)).splitlines()
    states = {line for line in lines if line.startswith("muster_run_state{")}
    assert states == {f'muster_run_state{{run="r",state="{state}"}} {int(state == "running")}' for state in STATES}


def test_the_exit_code_is_that_of_an_ended_run_only(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.write("running", exit_code=3)
    assert "muster_run_exit_code" not in metrics(read(run))
    run.ends(code=3)
    assert 'muster_run_exit_code{run="r"} 3' in metrics(read(run)).splitlines()


def test_each_family_is_described_once_however_many_runs_have_it(tmp_path: Path) -> None:
    runs = [SyntheticRun(tmp_path / name, 2) for name in "ab"]
    text = metrics(*(read(run) for run in runs))
    assert text.count("# HELP muster_run_wall_seconds ") == text.count("# TYPE muster_run_wall_seconds gauge") == 1
    assert 'muster_run_wall_seconds{run="a"}' in text and 'muster_run_wall_seconds{run="b"}' in text
    assert set(re.findall(r"# TYPE (\w+)", text)) <= FAMILIES.keys()
    assert metrics() in ("", "\n")


def test_the_seconds_of_all_nodes_add_up_to_the_time_of_the_allocation(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 4)
    run.brings_up()
    run.ends()
    text = metrics(read(run))
    seconds = [float(value) for value in re.findall(r"muster_run_node_seconds\{.*\} (.*)", text)]
    (wall,) = re.findall(r"muster_run_wall_seconds\{.*\} (.*)", text)
    assert abs(sum(seconds) - 4 * (float(wall) - 30.0)) < 0.1
