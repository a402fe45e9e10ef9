"""Owners: the processes to which programs and names belong, and whether they are alive."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from muster.process.proctree import start_time

CHECK_TIMEOUT_S = 30.0  # for another node to report whether a process is alive


@dataclass(frozen=True)
class Owner:
    """A process, with everything that identifies it from any node."""

    node: str  # Ray's id of its node
    host: str
    pid: int
    began: int  # start time in the kernel's ticks
    pids: str  # the pid namespace of `pid`
    since: float  # time.time() at which it became the owner

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {time.strftime('%H:%M:%S', time.localtime(self.since))})"


def is_alive(owner: Owner) -> bool | None:
    """Return whether the process runs; None if that is unknown."""
    if not any(node["NodeID"] == owner.node and node["Alive"] for node in ray.nodes()):  # type: ignore[no-untyped-call, unused-ignore]
        return False
    if owner.node == ray.get_runtime_context().get_node_id():
        return _runs_here(owner)
    on_node = NodeAffinitySchedulingStrategy(node_id=owner.node, soft=False)
    task: Any = ray.remote(num_cpus=0)(_runs_here)
    try:
        answer: bool | None = ray.get(task.options(scheduling_strategy=on_node).remote(owner), timeout=CHECK_TIMEOUT_S)
    except (RayError, GetTimeoutError):
        return None
    return answer


def _runs_here(owner: Owner) -> bool | None:
    if _pid_namespace() != owner.pids:
        return None
    return start_time(owner.pid) == owner.began


def this_process() -> Owner:
    """Return this process as an owner from now on."""
    node = ray.get_runtime_context().get_node_id()
    return Owner(node, socket.gethostname(), os.getpid(), start_time(os.getpid()) or 0, _pid_namespace(), time.time())


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
