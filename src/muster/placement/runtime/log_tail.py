"""What a program wrote last, read on its node when its actor cannot be asked any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from muster.process import Log

ANSWER_S = 5.0  # a node that has just been lost is still in Ray's table, and says nothing


def log_tail(facts: Mapping[str, Any]) -> str:
    """By what was known of it since its start; empty when its node does not answer."""
    if not facts.get("node_id") or not facts.get("log_file"):
        return ""
    there = NodeAffinitySchedulingStrategy(node_id=facts["node_id"], soft=False)
    task: Any = ray.remote(num_cpus=0)(_tail)
    try:
        # Not cancelled when it is late: ray.cancel of a task that ends in that moment aborts the whole process.
        tail: str = ray.get(task.options(scheduling_strategy=there).remote(facts["log_file"]), timeout=ANSWER_S)
    except RayError:
        return ""
    return tail


def _tail(log_file: str) -> str:
    return Log(log_file).tail()
