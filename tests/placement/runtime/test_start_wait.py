"""The wait for a replica: reports while it lasts, and an early end where its probe cannot succeed."""

from __future__ import annotations

from muster.placement.runtime.health import READY, STARTING
from muster.placement.runtime.start_wait import FIRST_REPORT_S, REPORT_INTERVAL_S, WRONG_PATH_S, StartWait

NOT_FOUND = "GET /health answered 404 Not Found"
REFUSED = "n1:8000: Connection refused"


def test_a_wait_is_reported_after_some_seconds_and_then_regularly() -> None:
    wait = StartWait(2, began=100.0)
    wait.observe(0, READY, "", 100.0)
    wait.observe(1, STARTING, REFUSED, 101.0)
    assert wait.late == [1] and wait.report(100.0 + FIRST_REPORT_S - 1) is None
    assert wait.report(100.0 + FIRST_REPORT_S) == f"not ready after {FIRST_REPORT_S:.0f} s: {REFUSED}"
    again = 100.0 + FIRST_REPORT_S + REPORT_INTERVAL_S
    assert wait.report(again - 1) is None and wait.report(again) is not None


def test_a_replica_that_is_ready_is_not_reported() -> None:
    wait = StartWait(1, began=0.0)
    wait.observe(0, READY, "", 1.0)
    assert wait.late == [] and wait.report(1000.0) is None


def test_a_path_that_the_program_does_not_have_ends_the_wait() -> None:
    wait = StartWait(1, began=0.0)
    wait.observe(0, STARTING, NOT_FOUND, 1.0)
    assert wait.hopeless(WRONG_PATH_S) is None
    wait.observe(0, STARTING, NOT_FOUND, 2.0)
    hopeless = wait.hopeless(1.0 + WRONG_PATH_S)
    assert hopeless is not None and hopeless[0] == 0
    assert NOT_FOUND in hopeless[1] and "Probe(path=" in hopeless[1]


def test_a_server_that_answers_404_only_for_a_while_is_waited_for() -> None:
    wait = StartWait(1, began=0.0)
    wait.observe(0, STARTING, NOT_FOUND, 1.0)
    wait.observe(0, STARTING, "GET /health answered 503 Service Unavailable", 2.0)
    assert wait.hopeless(1000.0) is None
