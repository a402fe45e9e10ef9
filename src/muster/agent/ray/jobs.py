"""Use of a Ray cluster: the live drivers and submitted jobs in its control service (GCS)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

_INTERNAL = "_ray_internal_"  # prefix of the namespaces of Ray's own drivers, such as the dashboard's
_SUBMITTED = b"_ray_internal_job_info_"
_NAMESPACE = b"job"
_ACTIVE = ("PENDING", "RUNNING")
_RPC_TIMEOUT_S = 10


class RayJobs:
    """The cluster's job table, read through Ray's client. The import of Ray, which is slow, happens on creation."""

    def __init__(self, address: str) -> None:
        from ray._raylet import GcsClient  # type: ignore[attr-defined, unused-ignore]

        self._client: Any = GcsClient(address=address)
        self._seen: set[bytes] = set()

    def in_use(self) -> bool:
        """Return whether a job is active, or has started since the last call. A failed query counts as use."""
        try:
            jobs = {
                job.job_id: bool(job.is_dead)
                for job in self._client.get_all_job_info(timeout=_RPC_TIMEOUT_S).values()
                if not job.config.ray_namespace.startswith(_INTERNAL)
            }
            submitted = self._submissions()
        except Exception as error:  # the exception classes differ between releases of Ray
            os.write(2, f"muster: Ray's job table could not be read: {error}\n".encode())
            return True
        new, self._seen = jobs.keys() - self._seen, set(jobs)
        return bool(new) or not all(jobs.values()) or any_active(submitted)

    def _submissions(self) -> list[bytes]:
        """Return the records of `ray job submit`: an entry point that never connects to Ray is not in the job table."""
        keys = self._client.internal_kv_keys(_SUBMITTED, namespace=_NAMESPACE, timeout=_RPC_TIMEOUT_S)
        values = (self._client.internal_kv_get(key, namespace=_NAMESPACE, timeout=_RPC_TIMEOUT_S) for key in keys)
        return [value for value in values if value is not None]


def any_active(submissions: Iterable[bytes]) -> bool:
    """Return whether one of these records describes a pending or running job."""
    return any(json.loads(record).get("status") in _ACTIVE for record in submissions)
