"""Parts of `status-<term>.json` on which its writer (the leader) and its readers agree."""

from __future__ import annotations

STATUS_REFRESH_S = 10.0  # a status older than a few of these means that its leader is gone
TIMINGS = ("job_start", "lead_ready", "ray_head_ready", "ray_ready", "driver_start", "driver_end", "ended")
