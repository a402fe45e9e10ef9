"""Resources of the step on this node: counted, compared with the request, declared to Ray.

Ray counts the whole machine, but a job may use only a part of it. A node with less than requested is refused with a
message; otherwise a driver would wait forever for the missing resources.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

MB = 1024 * 1024
MIN_STORE_BYTES = 80 * MB  # Ray refuses less than about 75 MB
MAX_STORE_BYTES = 200 * 1024 * MB  # as Ray's own default
MAX_LOCAL_STORE_BYTES = 2048 * MB  # where virtual nodes share one machine
STORE_SHARE = 0.3  # of the memory, as Ray does
SHM_SHARE = 0.9  # of the free shared memory: the rest is for others, such as NCCL


class ResourceMismatch(ValueError):
    """The node has less than the job requested."""


@dataclass(frozen=True)
class NodeResources:
    """Resources found on this node; None: unknown."""

    cpus: int
    confined: bool  # whether Slurm or an affinity mask limits the CPUs
    gpus: int | None
    memory: int  # bytes this step may use
    memory_limited: bool  # whether that is less than the machine's
    shm_free: int  # bytes


@dataclass(frozen=True)
class ResourceShare:
    """Resources that this node declares to Ray."""

    cpus: int
    gpus: int | None  # None: Ray counts
    store: int  # bytes of the object store
    memory: int | None  # bytes; None: Ray uses the free memory


def share(found: NodeResources, cpus: int | None, gpus: int | None, store: int | None, parts: int = 1) -> ResourceShare:
    """Return the resources to declare; raise ResourceMismatch if there are less than requested.

    `cpus`, `gpus` and `store` (bytes) are the job's requests; `parts` virtual nodes share the machine.

    >>> share(NodeResources(8, False, 2, 64 << 30, True, 100 << 30), None, 2, None)
    ResourceShare(cpus=8, gpus=2, store=20615843020, memory=48103633716)
    """
    local = parts > 1
    if cpus is not None and found.confined and found.cpus < cpus:
        raise ResourceMismatch(f"this step may use {found.cpus} CPUs, {cpus} were asked for (see --cpus-per-node)")
    if gpus is not None and found.gpus is not None and found.gpus != gpus:
        has = f"{found.gpus} GPU{'s' * (found.gpus != 1)}"
        raise ResourceMismatch(f"this step has {has}, {gpus} were asked for (see --gpus-per-node, --gres)")
    memory = found.memory // parts
    chosen = store if store is not None else _default_store(memory, found.shm_free // parts, local)
    return ResourceShare(cpus or found.cpus, gpus, chosen, memory - chosen if found.memory_limited else None)


def object_store_warning(found: NodeResources, chosen: ResourceShare) -> str | None:
    """Return a warning if the object store does not fit into shared memory: Ray then uses a slow disk."""
    if chosen.store <= found.shm_free:
        return None
    return (
        f"/dev/shm has {found.shm_free // MB} MB free, too little for Ray's object store of {chosen.store // MB} MB, "
        "which goes to the disk: enlarge /dev/shm (a container's with its own option) or lower --object-store-memory"
    )


def _default_store(memory: int, shm_free: int, local: bool) -> int:
    most = MAX_LOCAL_STORE_BYTES if local else MAX_STORE_BYTES
    return max(MIN_STORE_BYTES, int(min(memory * STORE_SHARE, shm_free * SHM_SHARE, most)))


def requested_gpus(gpus_per_node: int | None, gres: str | None) -> int | None:
    """Return the number of GPUs per node that the job requested with either option.

    >>> requested_gpus(None, "gpu:a100:4,nvme:1")
    4
    """
    if gpus_per_node is not None or gres is None:
        return gpus_per_node
    counts = [re.fullmatch(r"gpu(?::[^:,()]+)*?(?::(\d+))?(\(.*\))?", word) for word in gres.split(",")]
    found = [int(match[1] or 1) for match in counts if match]
    return sum(found) if found else None


def probe(env: Mapping[str, str]) -> NodeResources:
    """Count this node's resources. `env` is the step's environment, with Slurm's variables."""
    affinity, machine = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    given = env.get("SLURM_CPUS_ON_NODE", "")
    narrowed = affinity < machine
    cpus = int(given) if given.isdigit() else affinity
    if narrowed:
        cpus = min(cpus, affinity)
    total, limit = _machine_memory(), memory_limit(env)
    shm = os.statvfs("/dev/shm")
    confined = narrowed or given.isdigit()
    return NodeResources(
        cpus, confined, visible_gpus(env), min(total, limit), limit < total, shm.f_bavail * shm.f_frsize
    )


def visible_gpus(env: Mapping[str, str]) -> int | None:
    """Return the number of GPUs visible to this step: from the restricting variable, else from the device files."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in env:
            return len([word for word in env[name].split(",") if word and word not in ("-1", "NoDevFiles")])
    devices = glob.glob("/dev/nvidia[0-9]*")
    return len(devices) or (0 if "SLURM_JOB_ID" in env else None)


def memory_limit(env: Mapping[str, str], root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """Return the smallest memory limit in bytes, of the cgroups of this process and of Slurm; 2**62 without a limit."""
    limits = [1 << 62]
    for key in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"):
        if env.get(key, "").isdigit() and int(env[key]) > 0:
            limits.append(int(env[key]) * MB * (int(env.get("SLURM_CPUS_ON_NODE", 1)) if "CPU" in key[10:] else 1))
    for path in _cgroup_files(root, own):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) > 0:
            limits.append(int(text))
    return min(limits)


def _cgroup_files(root: str, own: str) -> list[str]:
    """Return the limit files of this process's cgroup and its ancestors, for cgroups v1 and v2."""
    files = []
    try:
        with open(own, encoding="utf-8") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    for _, controllers, path in (row for row in rows if len(row) == 3):
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = os.path.join(root, "memory"), "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        files += [os.path.join(base, *parts[:depth], name) for depth in range(len(parts), -1, -1)]
    return files


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
