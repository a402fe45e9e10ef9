"""The checks of a node, and what its leader learns of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.agent.conftest import identity
from tests.agent.leader.leader_doubles import job
from tests.agent.recorded_checks import RecordedProcess

from muster.agent.check_process import CheckProcess
from muster.agent.control.messages import ChecksDone
from muster.agent.health.checks.finding import Verdict
from muster.agent.health.checks.runner import NodeCheckResult
from muster.agent.node_checks import NodeChecks, summary

FULL = NodeCheckResult("disk", Verdict.FAILED, "/tmp is full", None, 0.1)
SLOW = NodeCheckResult("clock", Verdict.FAILED, "9 s", None, 0.1)
FAST = NodeCheckResult("cpu-speed", Verdict.PASSED, "", 2.5, 0.1)
ABSENT = NodeCheckResult("gpu-count", Verdict.SKIPPED, "none", None, 0.0)


def checks(path: Path, process: CheckProcess, **fields: Any) -> NodeChecks:
    made = NodeChecks(identity(path, 1), process)
    made.begin(job(**fields))
    return made


def test_failures_are_one_line_and_measured_values_are_kept() -> None:
    assert summary([FULL, FAST, ABSENT, SLOW]) == ChecksDone("disk: /tmp is full; clock: 9 s", {"cpu-speed": 2.5})
    assert summary([ABSENT]) == ChecksDone(None, {})


async def test_the_checks_before_the_job_run_once_for_all_leaders(tmp_path: Path) -> None:
    process = RecordedProcess(FULL)
    made = checks(tmp_path, process, node_checks="none", node_check={"disk": True, "cpu-speed": True})
    assert made.begun and await made.first_result() == await made.first_result() == ChecksDone("disk: /tmp is full", {})
    assert process.requests == [["disk", "cpu-speed"]]


async def test_tests_that_take_seconds_are_not_repeated(tmp_path: Path) -> None:
    process = RecordedProcess()
    made = checks(tmp_path, process, node_checks="basic", node_check={"cpu-speed": True})
    await made.first_result()
    await made.repeat()
    assert process.requests[1] == ["disk", "memory", "gpu-count"]


async def test_checks_that_take_too_long_for_the_end_of_a_run_say_nothing(tmp_path: Path) -> None:
    process = RecordedProcess(FULL)
    made = checks(tmp_path, process, node_checks="basic")
    await made.first_result()
    process.answers.clear()
    assert await made.repeat(0.05) == ChecksDone(None, {})


async def test_a_job_without_checks_begins_none(tmp_path: Path) -> None:
    assert not checks(tmp_path, RecordedProcess(), node_checks="none").begun
