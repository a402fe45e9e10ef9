"""Counters, latencies and the rate of executions."""

from __future__ import annotations

import pytest

from muster.sandbox.engine import metrics


def test_the_rate_is_of_the_last_whole_seconds_and_counts_are_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    counted = metrics.Metrics()
    for second in range(60):
        now = 1000.0 + second
        for status in ("ok", "completed", "timeout"):
            counted.ended("python", status, 0.0, 0.1)
    assert counted.summary() == {"executed": 180, "failed": 60, "rate": 3.0}
    assert len(counted._recent) <= 2 * metrics.RATE_WINDOW_S
    now += metrics.RATE_WINDOW_S + 1.0
    assert counted.summary()["rate"] == 0.0


def test_a_histogram_counts_durations_up_to_each_bound() -> None:
    histogram = metrics.Histogram()
    for seconds in (0.005, 0.006, 0.4, 1000.0):
        histogram.add(seconds)
    counts = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in histogram.lines("x") if line[0] != "#"}
    assert [counts[f'x_bucket{{le="{bound}"}}'] for bound in ("0.005", "0.01", "0.25", "0.5", "300", "+Inf")] == [
        "1",
        "2",
        "2",
        "3",
        "3",
        "4",
    ]
    assert counts["x_count"] == "4" and float(counts["x_sum"]) == pytest.approx(1000.411)


def test_all_metrics_are_in_the_text() -> None:
    counted = metrics.Metrics()
    counted.ended("python", "ok", 0.0, 0.1)
    counted.requests["/execute", 200] += 2
    lines = counted.text({"queued": 3}, {"refused_total": 4}, {"host": "n1", "isolation": "full"}).splitlines()
    assert {
        'muster_sandbox_executions_total{language="python",status="ok"} 1',
        'muster_sandbox_requests_total{path="/execute",code="200"} 2',
        "muster_sandbox_queued 3",
        "# TYPE muster_sandbox_queued gauge",
        "muster_sandbox_refused_total 4",
        "# TYPE muster_sandbox_refused_total counter",
        'muster_sandbox_info{host="n1",isolation="full"} 1',
        "muster_sandbox_run_seconds_count 1",
    } <= set(lines)


def test_the_busiest_workers_are_those_that_ran_longest() -> None:
    workers = [(number, number / 3, 2 * number, "warm") for number in range(20)]
    found = metrics.busiest(workers)
    assert [one["worker"] for one in found] == list(range(19, 9, -1))
    assert found[0] == {"worker": 19, "busy_s": 6.333, "executions": 38, "state": "warm"}
