"""Checks run at the same time, each with its deadline."""

from __future__ import annotations

import threading
import time

import pytest

from muster.agent.health.checks.finding import CheckedNode, Finding, Verdict, failed, passed
from muster.agent.health.checks.runner import run_checks
from muster.lifecycle import node_checks

NODE = CheckedNode({}, "/tmp", "/tmp")


def raises(error: Exception) -> Finding:
    raise error


def test_results_have_the_order_of_the_selection_and_thresholds_are_passed() -> None:
    checks = {"memory": lambda node, threshold: passed(f"{threshold}"), "disk": lambda node, threshold: failed("full")}
    results = run_checks(NODE, {"disk": 1.0, "memory": 2.0}, checks)
    assert [(one.name, one.verdict, one.reason) for one in results] == [
        ("disk", Verdict.FAILED, "full"),
        ("memory", Verdict.PASSED, "2.0"),
    ]


def test_a_check_that_hangs_fails_at_its_deadline_and_the_others_are_not_delayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = node_checks.NodeCheck("hangs", "basic", 0.2, "")
    monkeypatch.setitem(node_checks.BY_NAME, "hangs", check)
    released, began = threading.Event(), time.monotonic()
    checks = {"hangs": lambda node, threshold: passed(str(released.wait())), "disk": lambda node, threshold: passed()}
    hung, other = run_checks(NODE, {"hangs": None, "disk": 1.0}, checks)
    released.set()
    assert (hung.verdict, hung.reason) == (Verdict.FAILED, "did not end within 0.2 s")
    assert other.verdict is Verdict.PASSED and time.monotonic() - began < 5.0


def test_an_error_of_the_system_is_a_failure_and_a_defect_or_a_missing_permission_is_not() -> None:
    checks = {
        "disk": lambda node, threshold: raises(OSError(5, "Input/output error")),
        "memory": lambda node, threshold: raises(ValueError("of another form")),
        "shm": lambda node, threshold: raises(PermissionError(13, "Permission denied")),
    }
    disk, memory, shm = run_checks(NODE, dict.fromkeys(checks), checks)
    assert (disk.verdict, disk.reason) == (Verdict.FAILED, "[Errno 5] Input/output error")
    assert (memory.verdict, shm.verdict) == (Verdict.SKIPPED, Verdict.SKIPPED)


def test_measurements_run_after_the_others_and_one_at_a_time() -> None:
    running: list[str] = []
    together: list[int] = []

    def measure(node: CheckedNode, threshold: float) -> Finding:
        running.append("one")
        together.append(len(running))
        time.sleep(0.01)
        running.pop()
        return passed(measured=1.0)

    results = run_checks(NODE, {"cpu-speed": 0.7, "memory-speed": 0.7}, {"cpu-speed": measure, "memory-speed": measure})
    assert together == [1, 1] and [one.measured for one in results] == [1.0, 1.0]
