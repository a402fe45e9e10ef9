"""The page of metrics: those of runs from their definitions, those of sandboxes from the recorded format."""

from __future__ import annotations

import json
from pathlib import Path

from tests.docs.reference.markdown import code, heading, table

from muster.views import metrics as runs

GOLDEN = Path(__file__).parents[2] / "formats" / "golden"
SANDBOX = {
    "muster_sandbox_executions_total": "Programs and cells, by `language` and `status`.",
    "muster_sandbox_ended_for_memory_total": "Programs that the memory guard ended.",
    "muster_sandbox_requests_total": "Requests, by `path` and `code`.",
    "muster_sandbox_refused_total": "Requests that found the queue full, or waited too long.",
    "muster_sandbox_running": "Programs that run now.",
    "muster_sandbox_queued": "Requests in the queue.",
    "muster_sandbox_slots": "Maximum number of concurrent programs.",
    "muster_sandbox_run_seconds": "Run time of programs.",
    "muster_sandbox_wait_seconds": "Time in the queue.",
    "muster_sandbox_workers": "Workers.",
    "muster_sandbox_workers_started_total": "Workers that were started.",
    "muster_sandbox_workers_lost_total": "Workers that were lost.",
    "muster_sandbox_sessions": "Sessions.",
    "muster_sandbox_sessions_created_total": "Sessions that were created.",
    "muster_sandbox_sessions_evicted_total": "Sessions that were evicted.",
    "muster_sandbox_sessions_lost_total": "Sessions that were lost.",
    "muster_sandbox_session_memory_bytes": "Memory of all sessions.",
    "muster_sandbox_workspaces": "Workspaces.",
    "muster_sandbox_uptime_s": "Seconds since the start.",
    "muster_sandbox_info": "1; labels have the version and the isolation level.",
}
GATEWAY = {  # only in a cluster
    "muster_sandbox_members": "Members of the cluster.",
    "muster_sandbox_gateway_degraded": "1 if the file of members is refused.",
}


def run_metrics() -> dict[str, str]:
    """Return the metrics of runs with their descriptions."""
    return dict(runs.FAMILIES)


def recorded_sandbox() -> dict[str, str]:
    """Return the recorded metrics of a sandbox with their types."""
    return dict(name.split() for name in json.loads((GOLDEN / "sandbox-metrics.json").read_text()))  # type: ignore[misc]


def page() -> str:
    """Return the text of the page."""
    kinds = recorded_sandbox()
    of_runs = table(("metric", "meaning"), [[code(name), meaning] for name, meaning in run_metrics().items()])
    rows = [[code(name), kinds.get(name, "gauge"), meaning] for name, meaning in {**SANDBOX, **GATEWAY}.items()]
    of_sandboxes = table(("metric", "type", "meaning"), rows)
    where = (
        "At `/metrics` of `muster ui` and in `metrics.prom` of each run directory ([how](../how-to/metrics.md)). "
        "All are gauges with the label `run`."
    )
    sandbox = "At `/metrics` of each sandbox."
    return f"{heading('Metrics')}\n## Runs\n\n{where}\n\n{of_runs}\n\n## Sandboxes\n\n{sandbox}\n\n{of_sandboxes}\n"
