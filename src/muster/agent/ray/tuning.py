"""Ray's own settings, as variables of its processes' environment: for every cluster, and for large ones.

Whatever the user sets, in the environment of the submission or with --env, wins over any of these.
"""

from __future__ import annotations

from collections.abc import Mapping

EVERY = {
    # Python's start from a slow network filesystem can take longer than Ray's 60 s, when all workers start at once.
    "RAY_worker_register_timeout_seconds": "180",
    # A raylet that loses the race for its own object store's socket would sleep a whole second: try again sooner.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "1500",
}

LARGE = {
    # Hundreds of raylets register within seconds: their requests wait in the control service's queue.
    "RAY_gcs_server_request_timeout_seconds": "120",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "180",
    "RAY_raylet_start_wait_time_s": "300",
    # A loaded control service must not take nodes for dead that are only slow; lost hosts are found by the agents.
    "RAY_health_check_initial_delay_ms": "30000",
    "RAY_health_check_timeout_ms": "30000",
    "RAY_health_check_failure_threshold": "10",
}


def defaults(nodes: int, large_from: int) -> dict[str, str]:
    return {**EVERY, **LARGE} if nodes >= large_from else dict(EVERY)


def in_force(env: Mapping[str, str], nodes: int, large_from: int) -> dict[str, str]:
    """Every setting that Muster knows of, with the value it has here."""
    return {name: env.get(name, value) for name, value in defaults(nodes, large_from).items()}
