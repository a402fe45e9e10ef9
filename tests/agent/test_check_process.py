"""The process that runs the checks outlives no agent, and keeps none waiting."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.running import wait_for

from muster.agent import check_process
from muster.agent.check_process import CheckProcess, answer_request, start_check_process, temporary_directory
from muster.agent.health.checks.finding import Verdict
from muster.agent.health.checks.runner import NodeCheckResult
from muster.process.proctree import own_children

PETABYTE = float(1 << 50)


@pytest.fixture
def started() -> Iterator[tuple[CheckProcess, int]]:
    """A process for checks, and its pid."""
    before = set(own_children())
    process = start_check_process()
    (pid,) = set(own_children()) - before
    yield process, pid
    process.close()
    os.waitpid(pid, 0)  # it ends with its connection


async def results_of(process: CheckProcess, path: Path, **selected: float) -> list[NodeCheckResult]:
    return await process.run(selected, str(path))


async def test_checks_run_in_another_process_again_and_again(started: tuple[CheckProcess, int], tmp_path: Path) -> None:
    process, _ = started
    for threshold, verdict in ((0.0, Verdict.PASSED), (PETABYTE, Verdict.FAILED)) * 2:
        (result,) = await results_of(process, tmp_path, disk=threshold)
        assert (result.name, result.verdict) == ("disk", verdict)


async def test_requests_at_the_same_time_get_their_own_answers(
    started: tuple[CheckProcess, int], tmp_path: Path
) -> None:
    requests = (results_of(started[0], tmp_path, disk=threshold) for threshold in (0.0, PETABYTE, 0.0))
    verdicts = [results[0].verdict for results in await asyncio.gather(*requests)]
    assert verdicts == [Verdict.PASSED, Verdict.FAILED, Verdict.PASSED]


async def test_an_answer_that_does_not_come_is_a_failure_and_the_next_check_runs(
    started: tuple[CheckProcess, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, pid = started
    os.kill(pid, signal.SIGSTOP)  # as a process that waits for a device
    monkeypatch.setattr(check_process, "ANSWER_MARGIN_S", 0.1)
    monkeypatch.setattr(check_process, "sum_of_deadlines", lambda selected: 0.1)
    (result,) = await results_of(process, tmp_path, disk=0.0)
    assert (result.verdict, result.reason) == (Verdict.FAILED, "did not answer within 0.2 s")
    monkeypatch.undo()
    os.kill(pid, signal.SIGCONT)  # its late answer is ignored
    (other,) = await results_of(process, tmp_path, disk=PETABYTE)
    assert other.name == "disk"


async def test_checks_of_a_process_that_was_killed_have_no_result(tmp_path: Path) -> None:
    before = set(own_children())
    process = start_check_process()
    (pid,) = set(own_children()) - before
    os.kill(pid, signal.SIGKILL)
    assert await results_of(process, tmp_path, disk=PETABYTE) == []
    assert await results_of(process, tmp_path, disk=PETABYTE) == []
    os.waitpid(pid, 0)
    process.close()


async def test_a_signal_of_slurm_does_not_end_it(started: tuple[CheckProcess, int], tmp_path: Path) -> None:
    process, pid = started
    await results_of(process, tmp_path, disk=0.0)  # it has begun
    os.kill(pid, signal.SIGTERM)
    (result,) = await results_of(process, tmp_path, disk=0.0)
    assert result.verdict is Verdict.PASSED


def test_a_program_that_a_check_has_started_ends_with_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dmesg is found in PATH, closes its output and goes on."""
    program = tmp_path / "dmesg"
    program.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 1000 >/dev/null 2>&1 </dev/null &\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = set(own_children())
    process = start_check_process()
    (pid,) = set(own_children()) - before
    asyncio.run(process.run({"gpu-xid": None}, str(tmp_path)))
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_for("the end of the check's processes", lambda: children.read_text() == "")
    process.close()
    os.waitpid(pid, 0)


def test_without_a_process_or_checks_nothing_is_run(tmp_path: Path) -> None:
    assert asyncio.run(results_of(CheckProcess(None), tmp_path, disk=0.0)) == []


def test_a_request_is_answered_with_all_results(tmp_path: Path) -> None:
    request = {"id": 7, "checks": {"disk": 0.0}, "run_dir": str(tmp_path)}
    answer: dict[str, Any] = answer_request(request, {})
    assert answer["id"] == 7 and [one["name"] for one in answer["results"]] == ["disk"]


def test_a_temporary_directory_that_this_node_lacks_is_not_checked(tmp_path: Path) -> None:
    assert temporary_directory({"TMPDIR": str(tmp_path)}) == str(tmp_path)
    assert temporary_directory({"TMPDIR": str(tmp_path / "absent")}) == temporary_directory({}) == "/tmp"
