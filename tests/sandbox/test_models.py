"""Programs and results as data: what succeeded, and the reason of an end."""

from __future__ import annotations

import pytest
from tests.sandbox.results import ended

from muster.sandbox.models import REASONS, ResourceUsage, refusal


def test_only_an_exit_with_0_by_itself_is_a_success() -> None:
    assert ended().succeeded
    assert not ended(exit_code=1).succeeded
    assert not ended(exit_code=None, signal=9).succeeded
    assert not ended(exit_code=0, reason="memory").succeeded


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exit_code": 3}, "it exited with 3"),
        ({"exit_code": None, "signal": 11}, "it was ended by SIGSEGV"),
        ({"exit_code": None, "signal": 200}, "it was ended by signal 200"),
        ({"exit_code": None, "signal": 9, "reason": "memory"}, "it exceeded its memory limit"),
        ({"exit_code": None, "signal": 9, "reason": "timeout"}, "it was ended by SIGKILL"),
    ],
)
def test_an_end_has_a_message(fields: dict[str, object], message: str) -> None:
    assert ended(**fields).message == message
    assert all(ended(reason=reason).message == text for reason, text in REASONS.items())


def test_usage_is_rounded_for_a_response() -> None:
    assert ResourceUsage(1.23456789, 0.00004, 77).to_json() == {"wall_s": 1.2346, "cpu_s": 0.0, "max_rss_kb": 77}


def test_a_refusal_has_all_keys_that_clients_read() -> None:
    assert refusal("why") == {"error": "why", "process_status": "error", "stdout": "", "stderr": "why\n"}
