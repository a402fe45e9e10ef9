"""Ray's settings as environment variables: for all clusters, and for large ones.

Variables that the user sets, at submission or with --env, win over these.
"""

from __future__ import annotations

from collections.abc import Mapping

ALL_CLUSTERS = {
    # The default is 60 s. Python's start from a slow network filesystem can take longer when all workers start at once.
    "RAY_worker_register_timeout_seconds": "180",
    # A raylet that connects before its object store listens would sleep for a second: retry sooner.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "1500",
    # The default is 60 s. A restarted GCS loads its state first, which takes longer on a busy disk (gcs_recovery.py).
    "RAY_gcs_rpc_server_reconnect_timeout_s": "180",
}

LARGE_CLUSTERS = {
    # Hundreds of raylets register within seconds: their requests wait in the GCS's queue.
    "RAY_gcs_server_request_timeout_seconds": "120",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_raylet_start_wait_time_s": "300",
    # A loaded GCS must not declare slow nodes dead; the agents detect lost hosts.
    "RAY_health_check_initial_delay_ms": "30000",
    "RAY_health_check_timeout_ms": "30000",
    "RAY_health_check_failure_threshold": "10",
}


def defaults(nodes: int, large_from: int) -> dict[str, str]:
    return {**ALL_CLUSTERS, **LARGE_CLUSTERS} if nodes >= large_from else dict(ALL_CLUSTERS)


def effective_settings(env: Mapping[str, str], nodes: int, large_from: int) -> dict[str, str]:
    """Return every setting in this module with the value it has in this environment."""
    return {name: env.get(name, value) for name, value in defaults(nodes, large_from).items()}
