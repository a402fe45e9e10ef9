"""Hangs at the leader: which processes are named, when the run ends or restarts, and when it is only reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.agent.leader.leader_doubles import LeaderParts, wait_until

from muster.agent.control.messages import SectionReport
from muster.agent.health.section_limits import ProcessSection
from muster.agent.leader.hang_reports import HangReports, lagging_processes
from muster.lifecycle.events import DriverStalled


def process(rank: int, seconds: float = 60.0, step: int | None = None, section: str = "all-reduce", **more: Any) -> Any:
    values: dict[str, Any] = {"pid": 100 + rank, "limit": 5.0, "given": True, **more}
    return ProcessSection(rank=rank, step=step, section=section, seconds=seconds, **values)


def report(*processes: ProcessSection, overdue: bool = True, cycle: int = 0) -> SectionReport:
    return SectionReport(processes, overdue, cycle)


def running(directory: Path, **fields: Any) -> tuple[LeaderParts, HangReports]:
    parts = LeaderParts(directory, **fields)
    parts.arrive()
    return parts, HangReports(parts.context)


async def handled(parts: LeaderParts) -> None:
    """Let all nodes answer, and wait for the event."""
    parts.sent.stacks.set_result([True])
    await wait_until(lambda: parts.events("hang"))


async def test_the_processes_that_lag_are_named_first_when_all_nodes_have_reported(tmp_path: Path) -> None:
    parts, hangs = running(tmp_path)
    hangs.on_report(0, report(process(0, step=7)))
    hangs.on_report(1, report(process(1, seconds=61.0, step=6, section="load"), overdue=False))
    await handled(parts)
    (event,) = parts.events("hang")
    named = "rank 1 on n1 in 'load' for 61.0 s (limit 5.0 s), step 6"
    assert event["reason"] == f"the run hangs: {named}; see logs/stacks-*.txt"
    assert [(one["host"], one["rank"], one["lags"]) for one in event["processes"]] == [
        ("n1", 1, True),
        ("n0", 0, False),
    ]
    assert named in parts.phases()
    assert parts.fed() == []  # only a report


@pytest.mark.parametrize(
    ("fields", "given", "restart"),
    [
        ({"on_hang": "restart"}, False, True),
        ({"on_hang": "fail", "stall_timeout": 60.0}, False, False),
        ({"stall_timeout": 60.0}, True, None),
    ],
    ids=["restart", "fail", "as-a-stall"],
)
async def test_the_policy_decides(tmp_path: Path, fields: dict[str, Any], given: bool, restart: bool | None) -> None:
    parts, hangs = running(tmp_path, **fields)
    hangs.on_report(0, report(process(0, given=given)))
    await handled(parts)
    await wait_until(parts.fed)
    (event,) = parts.fed()
    assert isinstance(event, DriverStalled)
    assert (event.restart, event.cycle) == (restart, 0) and event.reason.startswith("the run hangs: rank 0 on n0")


@pytest.mark.parametrize(
    "fields",
    [{"on_hang": "report", "stall_timeout": 60.0}, {"stall_timeout": 60.0}, {}],
    ids=["asked", "learned", "default"],
)
async def test_a_learned_limit_only_reports_unless_the_job_says_more(tmp_path: Path, fields: dict[str, Any]) -> None:
    parts, hangs = running(tmp_path, **fields)
    hangs.on_report(0, report(process(0, given=False)))
    await handled(parts)
    assert parts.fed() == []


async def test_a_process_that_was_only_slow_is_no_hang(tmp_path: Path) -> None:
    parts, hangs = running(tmp_path, on_hang="fail")
    hangs.on_report(0, report(process(0)))
    hangs.on_report(0, report(process(0, seconds=1.0), overdue=False))  # with the stacks
    parts.sent.stacks.set_result([True])
    await wait_until(lambda: not hangs._dumping)
    assert parts.events("hang") == [] and parts.fed() == []


async def test_reports_of_another_cycle_are_ignored(tmp_path: Path) -> None:
    parts, hangs = running(tmp_path)
    hangs.on_report(0, report(process(0), cycle=3))
    assert not hangs._dumping and not parts.events("hang")


def test_without_steps_those_lag_that_wait_for_longest() -> None:
    current = [(0, process(0, seconds=30.0)), (1, process(1, seconds=60.0)), (2, process(2, seconds=58.0))]
    assert [one.rank for _, one in lagging_processes(current)] == [1, 2]


def test_of_the_processes_at_the_lowest_step_the_overdue_ones_lag() -> None:
    current = [(0, process(0, step=5)), (1, process(1, step=4, seconds=1.0)), (2, process(2, step=4))]
    assert [one.rank for _, one in lagging_processes(current)] == [2]
    assert [one.rank for _, one in lagging_processes(current[:2])] == [1]
