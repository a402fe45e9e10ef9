"""What counts as use of a Ray cluster: drivers in its job table, and submitted jobs."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from muster.agent.ray.jobs import RayJobs, any_active


def test_a_submitted_job_is_active_while_it_is_pending_or_running() -> None:
    records = {state: json.dumps({"status": state}).encode() for state in ("PENDING", "RUNNING", "SUCCEEDED", "FAILED")}
    assert [state for state, record in records.items() if any_active([record])] == ["PENDING", "RUNNING"]


class Gcs:
    """The control service with a job table and the records of submitted jobs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._jobs: dict[str, Any] = {}
        self.submitted: dict[bytes, bytes | None] = {}
        self.error: Exception | None = None
        raylet: Any = ModuleType("ray._raylet")
        raylet.GcsClient = lambda address: self
        monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
        monkeypatch.setitem(sys.modules, "ray._raylet", raylet)

    def driver(self, job_id: str, dead: bool, namespace: str = "anonymous") -> None:
        config = SimpleNamespace(ray_namespace=namespace)
        self._jobs[job_id] = SimpleNamespace(job_id=job_id.encode(), is_dead=dead, config=config)

    def get_all_job_info(self, timeout: float) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return self._jobs

    def internal_kv_keys(self, prefix: bytes, namespace: bytes, timeout: float) -> list[bytes]:
        return [key for key in self.submitted if key.startswith(prefix)]

    def internal_kv_get(self, key: bytes, namespace: bytes, timeout: float) -> bytes | None:
        return self.submitted[key]


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Gcs:
    return Gcs(monkeypatch)


def test_a_driver_is_use_until_it_is_dead_and_ray_s_own_drivers_are_not(gcs: Gcs) -> None:
    jobs = RayJobs("n0:6379")
    gcs.driver("0", dead=False, namespace="_ray_internal_dashboard")
    assert not jobs.in_use()
    gcs.driver("1", dead=False)
    assert jobs.in_use() and jobs.in_use()
    gcs.driver("1", dead=True)
    assert not jobs.in_use()


def test_a_driver_that_was_quicker_than_a_poll_is_use_once(gcs: Gcs) -> None:
    jobs = RayJobs("n0:6379")
    gcs.driver("1", dead=True)
    assert jobs.in_use()
    assert not jobs.in_use()


def test_a_submitted_job_without_a_driver_is_use(gcs: Gcs) -> None:
    jobs = RayJobs("n0:6379")
    gcs.submitted = {b"_ray_internal_job_info_a": None, b"other": b"no record"}
    assert not jobs.in_use()
    gcs.submitted[b"_ray_internal_job_info_b"] = b'{"status": "RUNNING"}'
    assert jobs.in_use()


def test_a_query_that_fails_counts_as_use(gcs: Gcs, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = RayJobs("n0:6379")
    gcs.error = RuntimeError("it is away")
    assert jobs.in_use()
    assert "Ray's job table could not be read: it is away" in capfd.readouterr().err
