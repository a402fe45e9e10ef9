"""The measured speed of the processor and of memory."""

from __future__ import annotations

from muster.agent.health.checks import speed
from muster.agent.health.checks.finding import CheckedNode, Verdict


def test_both_speeds_are_measured() -> None:
    node = CheckedNode({}, "/tmp", "/tmp")
    for check in (speed.check_cpu, speed.check_memory):
        found = check(node, 0.7)
        assert found.verdict is Verdict.PASSED and found.measured is not None and found.measured > 0
