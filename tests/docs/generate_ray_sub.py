"""Write the generated tables of docs/reference/ray-sub.md: variables of ray.sub, and its settings of Ray.

python -m tests.docs.reference
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.docs.generate_tables import table

from muster.agent.ray import tuning
from muster.spec.ray_sub_variables import RAY_SUB_VARIABLES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ray-sub.md"

RAY_SUB_SETTINGS = {
    "gcs_server_rpc_server_thread_num": "CPUs of the node",
    "num_server_call_thread": "half the CPUs",
    "gcs_server_rpc_client_thread_num": "CPUs of the node",
    "gcs_max_active_rpcs_per_handler": "200 times the CPUs",
    "worker_register_timeout_seconds": "120",
    "gcs_rpc_server_connect_timeout_s": "120",
    "gcs_rpc_server_reconnect_timeout_s": "120",
    "gcs_server_request_timeout_seconds": "120",
    "raylet_report_resources_period_milliseconds": "500",
    "task_events_report_interval_ms": "5000",
    "num_workers_soft_limit": "16",
    "grpc_keepalive_time_ms": "60000",
    "grpc_keepalive_timeout_ms": "60000",
    "enable_timeline": "false",
    "event_stats": "false",
    "ray_syncer_message_refresh_interval_ms": "10000",
    "core_worker_internal_heartbeat_ms": "5000",
    "health_check_period_ms": "10000",
}
"""Ray's settings that ray.sub changes at every size, in August 2026."""


def variables() -> str:
    """Return the table of variables."""
    rows = [(f"`{name}`", variable.support.value, variable.text) for name, variable in RAY_SUB_VARIABLES.items()]
    return table(("variable", "`--from-env`", "in Muster"), rows)


def settings() -> str:
    """Return the table of Ray's settings: first those of ray.sub, then those that only Muster has."""
    muster = {**tuning.LARGE_CLUSTERS, **tuning.ALL_CLUSTERS}
    names = dict.fromkeys([f"RAY_{name}" for name in RAY_SUB_SETTINGS] + list(muster))
    rows: list[Sequence[str]] = []
    for name in names:
        value = muster.get(name, "Ray's default")
        size = "" if name not in muster else "every size" if name in tuning.ALL_CLUSTERS else "`--large-from`"
        rows.append((f"`{name}`", RAY_SUB_SETTINGS.get(name.removeprefix("RAY_"), "Ray's default"), value, size))
    return table(("setting", "ray.sub", "Muster", "Muster sets it from"), rows)


def page(text: str) -> str:
    """Return the page with current tables."""
    for name, content in (("variables", variables()), ("settings", settings())):
        begin, end = f"<!-- {name}: generated -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        assert found, f"{PAGE} has no place for the table of {name}"
        text = f"{before}{begin}\n\n{content}\n\n{end}{after}"
    return text


def current_page() -> str:
    """Return the page that is there, with current tables."""
    return page(PAGE.read_text(encoding="utf-8"))
