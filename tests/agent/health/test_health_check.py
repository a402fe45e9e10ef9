"""Health checks of a spare: what is reported, and that no process of a check is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.running import wait_for

from muster.agent.health.health_check import HealthCheck, run_check


@pytest.mark.parametrize(
    ("text", "unhealthy_reason"),
    [
        ("true", None),
        ("echo all well; exit 0", None),
        ("echo first; echo a GPU fell off the bus >&2; echo; exit 3", ": a GPU fell off the bus (code 3)"),
        ("exit 1", " (code 1)"),
        ("kill -KILL $$", " (code 137)"),
    ],
)
async def test_a_check_that_fails_says_why_by_its_last_line(text: str, unhealthy_reason: str | None) -> None:
    assert await run_check(text, 30.0) == (
        None if unhealthy_reason is None else f"--health-check failed{unhealthy_reason}"
    )


async def test_a_check_that_hangs_has_failed_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    unhealthy_reason = await run_check(f"sleep 1000 & echo $! >{pid}; wait", 4.0)
    assert unhealthy_reason == "--health-check did not end within 4 s"
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


async def no_failure() -> str | None:
    return None


async def test_a_built_in_check_that_fails_is_reported_and_the_command_is_not_run(tmp_path: Path) -> None:
    results: list[tuple[bool, str]] = []

    async def full_disk() -> str | None:
        return "disk: full"

    checks = HealthCheck(lambda ok, reason: results.append((ok, reason)), full_disk)
    checks.start(f"touch {tmp_path}/run", 0.01)
    while not results:
        await asyncio.sleep(0.01)
    await checks.close()
    assert results[0] == (False, "disk: full") and not (tmp_path / "run").exists()


async def test_without_a_command_only_built_in_checks_are_run() -> None:
    results: list[tuple[bool, str]] = []
    checks = HealthCheck(lambda ok, reason: results.append((ok, reason)), no_failure)
    checks.start(None, 0.01)
    while not results:
        await asyncio.sleep(0.01)
    await checks.close()
    assert results[0] == (True, "")


async def test_checks_repeat_and_every_result_is_reported_until_they_are_ended(tmp_path: Path) -> None:
    unhealthy, results = tmp_path / "unhealthy", []
    checks = HealthCheck(lambda ok, reason: results.append((ok, reason)), no_failure)
    checks.start(f"[ ! -e {unhealthy} ]", 0.05)
    while (True, "") not in results:
        await asyncio.sleep(0.02)
    unhealthy.touch()
    while results[-1][0]:
        await asyncio.sleep(0.02)
    assert results[-1] == (False, "--health-check failed (code 1)")
    unhealthy.unlink()
    while not results[-1][0]:
        await asyncio.sleep(0.02)
    await checks.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}  # no task is left that could report


async def test_a_check_under_way_is_ended_with_the_rest(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    checks = HealthCheck(lambda ok, reason: None, no_failure)
    checks.start(f"sleep 1000 & echo $! >{pid}.tmp; mv {pid}.tmp {pid}; wait", 0.01)
    await asyncio.to_thread(wait_for, "the check to begin", pid.exists)
    await checks.close()
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
