"""Whether anybody uses a Ray cluster: the drivers and submitted jobs that its control service knows as alive."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

_INTERNAL = "_ray_internal_"  # namespaces of Ray's own drivers, the dashboard's among them
_SUBMITTED = b"_ray_internal_job_info_"
_NAMESPACE = b"job"
_LIVE = ("PENDING", "RUNNING")
_PATIENCE_S = 10


class RayJobs:
    """The job table, read through Ray's own client, which costs an import of Ray once."""

    def __init__(self, address: str) -> None:
        from ray._raylet import GcsClient  # type: ignore[attr-defined, unused-ignore]

        self._client: Any = GcsClient(address=address)
        self._seen: set[bytes] = set()

    def used(self) -> bool:
        """Whether a job lives, or has come and gone since the last look. An unanswered question counts as use."""
        try:
            jobs = {
                job.job_id: bool(job.is_dead)
                for job in self._client.get_all_job_info(timeout=_PATIENCE_S).values()
                if not job.config.ray_namespace.startswith(_INTERNAL)
            }
            submitted = self._submissions()
        except Exception as error:  # of whatever class: Ray's differ between releases
            os.write(2, f"muster: Ray's job table could not be read: {error}\n".encode())
            return True
        new, self._seen = jobs.keys() - self._seen, set(jobs)
        return bool(new) or not all(jobs.values()) or any_lives(submitted)

    def _submissions(self) -> list[bytes]:
        """What `ray job submit` has recorded: an entry point that never connects to Ray is in no job table."""
        keys = self._client.internal_kv_keys(_SUBMITTED, namespace=_NAMESPACE, timeout=_PATIENCE_S)
        values = (self._client.internal_kv_get(key, namespace=_NAMESPACE, timeout=_PATIENCE_S) for key in keys)
        return [value for value in values if value is not None]


def any_lives(submissions: Iterable[bytes]) -> bool:
    """Whether one of these records is of a job that waits or runs."""
    return any(json.loads(record).get("status") in _LIVE for record in submissions)
