"""Read the end of a program's log on its node when its actor is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from muster.process import Log

READ_TIMEOUT_S = 5.0  # a node that was lost recently is still in Ray's table and does not answer


def log_tail(facts: Mapping[str, Any]) -> str:
    """Return the end of the log by the facts of the program's start; empty if its node does not answer."""
    if not facts.get("node_id") or not facts.get("log_file"):
        return ""
    on_node = NodeAffinitySchedulingStrategy(node_id=facts["node_id"], soft=False)
    task: Any = ray.remote(num_cpus=0)(_tail)
    try:
        # A late task is not cancelled: ray.cancel of a task that ends at the same time aborts the whole process.
        tail: str = ray.get(task.options(scheduling_strategy=on_node).remote(facts["log_file"]), timeout=READ_TIMEOUT_S)
    except RayError:
        return ""
    return tail


def _tail(log_file: str) -> str:
    return Log(log_file).tail()
