"""Which function implements each built-in check (see `lifecycle/node_checks.py` for their names)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.agent.health.checks import (
    clock,
    dcgm,
    gpu,
    kernel_log,
    leftovers,
    nic,
    nvlink,
    space,
    speed,
    storage,
)
from muster.agent.health.checks.finding import CheckedNode, Finding

Check = Callable[[CheckedNode, Any], Finding]  # the threshold is None for a check without one

IMPLEMENTATIONS: Mapping[str, Check] = {
    "disk": space.check_disk,
    "memory": space.check_memory,
    "gpu-count": gpu.check_count,
    "shm": space.check_shared_memory,
    "local-storage": storage.check_local,
    "shared-storage": storage.check_shared,
    "clock": clock.check_clock,
    "nic": nic.check_ports,
    "gpu-ecc": gpu.check_ecc,
    "gpu-xid": kernel_log.check_xids,
    "gpu-nvlink": nvlink.check_links,
    "gpu-clocks": gpu.check_clocks,
    "gpu-memory": gpu.check_memory_in_use,
    "leftovers": leftovers.check_leftovers,
    "cpu-speed": speed.check_cpu,
    "memory-speed": speed.check_memory,
    "dcgm": dcgm.check_diagnosis,
}
