"""The status of a run from its directory: pending, live, finished, and broken in various ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runs.conftest import FakeRun

from muster.rundir.records import newest_published
from muster.runs.status import read_status

DOCUMENTED = {
    "run",
    "end_reason",
    "job_id",
    "backend",
    "state",
    "attempt",
    "cycle",
    "nodes",
    "driver",
    "timings",
    "error",
}
TIMINGS = {"job_start", "lead_ready", "ray_head_ready", "ray_ready", "driver_start", "driver_end", "ended"}


def part(run: FakeRun, *names: str) -> tuple[Any, ...]:
    status = read_status(run)
    assert status.keys() >= DOCUMENTED
    assert status["timings"].keys() >= TIMINGS
    assert status["driver"].keys() >= {"state", "exit_code"}
    return tuple(status[name] for name in names)


def test_a_run_that_was_only_prepared_is_pending(run: FakeRun) -> None:
    assert part(run, "state", "job_id", "attempt") == ("pending", None, None)


def test_a_submitted_run_is_pending_and_known_by_its_job(run: FakeRun) -> None:
    run.submitted(job_id="4711")
    assert part(run, "run", "state", "job_id", "backend") == (run.run_id, "pending", "4711", "slurm")


def test_a_run_whose_leader_has_not_come_up_is_gathering(run: FakeRun) -> None:
    run.submitted(job_id="4711").begins()
    assert part(run, "state", "attempt", "cycle") == ("gathering", 0, 0)


def test_a_live_run_is_as_its_leader_published_it(run: FakeRun) -> None:
    nodes = [{"rank": 0, "host": "n0", "role": "lead", "state": "ready"}]
    run.submitted(job_id="4711").begins().publishes(
        "running", nodes=nodes, driver={"state": "running", "exit_code": None}
    )
    assert part(run, "state", "nodes", "exit_code") == ("running", nodes, None)


def test_a_finished_run_is_as_its_leader_published_it_with_the_recorded_code(run: FakeRun) -> None:
    run.begins().publishes("failed", end_reason="the driver exited with 7").ends(7, "the driver exited with 7")
    assert part(run, "state", "exit_code", "end_reason") == ("failed", 7, "the driver exited with 7")


def test_the_highest_term_counts_by_number(run: FakeRun) -> None:
    run.begins()
    for term, state in ((2, "failed"), (10, "running"), (9, "stopped")):
        run.publishes(state, term=term)
    assert part(run, "state", "term") == ("running", 10)


def test_files_that_are_only_called_similarly_are_no_status(run: FakeRun) -> None:
    run.begins().publishes("running")
    for name in ("status-7.json.n0.123.tmp", "status-x.json", "old-status-8.json"):
        Path(run.attempt(0).root, name).write_text('{"state": "failed"}')
    assert part(run, "state") == ("running",)


def test_the_newest_attempt_counts(run: FakeRun) -> None:
    run.begins(0).publishes("failed").ends(125, "node lost").begins(1)
    assert part(run, "state", "attempt", "exit_code", "end_reason") == ("gathering", 1, None, None)


# -- broken runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "state"), [(0, "succeeded"), (7, "failed"), (125, "failed"), (130, "stopped"), (143, "stopped")]
)
def test_an_outcome_without_a_published_end_counts(run: FakeRun, code: int, state: str) -> None:
    """The job script recorded it, or the filesystem shows the leader's last status only later."""
    run.begins().publishes("running").ends(code, "the leader is gone")
    assert part(run, "state", "exit_code", "end_reason") == (state, code, "the leader is gone")


def test_an_error_that_the_leader_published_is_kept_when_the_script_recorded_the_end(run: FakeRun) -> None:
    error = {"rank": 1, "host": "n1", "phase": "ray", "reason": "it broke", "log_tail": []}
    run.begins().publishes("finishing", error=error).ends(125, "the step ended without an outcome")
    assert part(run, "error") == (error,)


def test_a_node_whose_agent_did_not_start_is_named_from_the_launcher_log(run: FakeRun) -> None:
    attempt = run.begins().ends(125, "the leader is gone").attempt(0)
    Path(attempt.steps_log).write_text(
        "muster: n3: cannot see /x\nsrun: error: n3: task 2: Exited with exit code 121\n"
    )
    Path(attempt.node_log(2)).write_text("last words\n")
    (error,) = part(run, "error")
    assert error == {"rank": 2, "host": "n3", "phase": "start", "reason": "cannot see /x", "log_tail": ["last words"]}


def test_any_line_of_the_launcher_is_better_than_no_reason(run: FakeRun) -> None:
    attempt = run.begins().ends(125, "the step ended without an outcome").attempt(0)
    Path(attempt.steps_log).write_text("srun: error: Unable to create step\nsrun: error: Invalid gres\n")
    (error,) = part(run, "error")
    assert (error["host"], error["reason"]) == (None, "srun: error: Invalid gres")


def test_a_harmless_line_of_the_launcher_is_no_reason(run: FakeRun) -> None:
    attempt = run.begins().ends(125, "the leader n1 is gone").attempt(0)
    Path(attempt.steps_log).write_text("srun: cluster configuration lacks support for cpu binding\n")
    assert part(run, "error") == (None,)


def test_tasks_that_a_stop_ended_are_no_error(run: FakeRun) -> None:
    attempt = run.begins().ends(143, "the job received SIGTERM; no leader was up yet").attempt(0)
    Path(attempt.steps_log).write_text("srun: error: n1: task 0: Terminated\n")
    assert part(run, "state", "error") == ("stopped", None)


def test_a_launcher_that_said_nothing_is_no_error_by_itself(run: FakeRun) -> None:
    run.begins().ends(125, "the step ended without an outcome")
    assert part(run, "state", "error") == ("failed", None)


@pytest.mark.parametrize("contents", ["", "{", '{"state": "runn', "[]", "3", '"running"', "null", "\0\0\0"])
def test_a_garbled_status_file_is_as_good_as_none(run: FakeRun, contents: str) -> None:
    run.submitted(job_id="4711").begins()
    Path(run.attempt(0).status()).write_text(contents)
    assert newest_published(run.attempt(0)) is None
    assert part(run, "state", "job_id") == ("gathering", "4711")


@pytest.mark.parametrize("contents", ["", "{", "[]", "3", "null", "{}", '{"exit_code": null}', '{"exit_code": "7"}'])
def test_a_garbled_outcome_is_as_good_as_none(run: FakeRun, contents: str) -> None:
    run.begins().publishes("running")
    Path(run.attempt(0).outcome).write_text(contents)
    assert part(run, "state", "exit_code") == ("running", None)


@pytest.mark.parametrize("contents", ["", "{", "[]", "3", "null"])
def test_a_garbled_submission_is_as_good_as_none(run: FakeRun, contents: str) -> None:
    Path(run.submission).write_text(contents)
    run.begins().publishes("running")
    assert part(run, "state", "job_id") == ("running", None)
