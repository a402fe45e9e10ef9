"""Which submitted jobs count as use of a Ray cluster."""

from __future__ import annotations

import json

from muster.agent.ray.jobs import any_active


def test_a_submitted_job_is_active_while_it_is_pending_or_running() -> None:
    records = {state: json.dumps({"status": state}).encode() for state in ("PENDING", "RUNNING", "SUCCEEDED", "FAILED")}
    assert [state for state, record in records.items() if any_active([record])] == ["PENDING", "RUNNING"]
