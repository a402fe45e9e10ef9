"""What this step really has on this node: counted inside it, compared with what was asked for, handed to Ray.

Ray by itself counts the whole machine: all CPUs, all memory. What a job may use is less, and a node that has less than
was asked for is better refused by name than found out by a driver that waits for resources that never come.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

MB = 1024 * 1024
SMALLEST_STORE = 80 * MB  # Ray refuses less than about 75
LARGEST_STORE = 200 * 1024 * MB  # as Ray's own default
LARGEST_LOCAL_STORE = 2048 * MB  # where virtual nodes share one machine
STORE_SHARE = 0.3  # of the memory, as Ray does
SHM_SHARE = 0.9  # of what is free: the rest is for others, NCCL for one


class Mismatch(ValueError):
    """The node does not have what was asked for."""


@dataclass(frozen=True)
class NodeResources:
    """What a look around this step found; None where nothing tells."""

    cpus: int
    confined: bool  # whether the CPUs are a limit that somebody set: Slurm, or an affinity
    gpus: int | None
    memory: int  # bytes this step may use
    memory_limited: bool  # whether that is less than the machine's
    shm_free: int


@dataclass(frozen=True)
class ResourceShare:
    """What this node's part of Ray declares."""

    cpus: int
    gpus: int | None  # None: let Ray count
    store: int
    memory: int | None  # None: let Ray decide from what is free


def share(found: NodeResources, cpus: int | None, gpus: int | None, store: int | None, parts: int = 1) -> ResourceShare:
    """What to declare, given what was asked for; Mismatch where less is there. `parts` virtual nodes share a machine.

    >>> share(Found(8, False, 2, 64 << 30, True, 100 << 30), None, 2, None)
    Share(cpus=8, gpus=2, store=20615843020, memory=48103633716)
    """
    local = parts > 1
    if cpus is not None and found.confined and found.cpus < cpus:
        raise Mismatch(f"this step may use {found.cpus} CPUs, {cpus} were asked for (see --cpus-per-node)")
    if gpus is not None and found.gpus is not None and found.gpus != gpus:
        raise Mismatch(f"this step has {found.gpus} GPUs, {gpus} were asked for (see --gpus-per-node, --gres)")
    memory = found.memory // parts
    chosen = store if store is not None else _store(memory, found.shm_free // parts, local)
    return ResourceShare(cpus or found.cpus, gpus, chosen, memory - chosen if found.memory_limited else None)


def complaint(found: NodeResources, chosen: ResourceShare) -> str | None:
    """Ray puts an object store that does not fit into shared memory on the disk: it works, slowly."""
    if chosen.store <= found.shm_free:
        return None
    return (
        f"/dev/shm has {found.shm_free // MB} MB free, too little for Ray's object store of {chosen.store // MB} MB, "
        "which goes to the disk: enlarge /dev/shm (a container's with its own option) or lower --object-store-memory"
    )


def _store(memory: int, shm_free: int, local: bool) -> int:
    most = LARGEST_LOCAL_STORE if local else LARGEST_STORE
    return max(SMALLEST_STORE, int(min(memory * STORE_SHARE, shm_free * SHM_SHARE, most)))


def requested_gpus(gpus_per_node: int | None, gres: str | None) -> int | None:
    """GPUs of a node as the job asked for them, by either way.

    >>> requested_gpus(None, "gpu:a100:4,nvme:1")
    4
    """
    if gpus_per_node is not None or gres is None:
        return gpus_per_node
    counts = [re.fullmatch(r"gpu(?::[^:,()]+)*?(?::(\d+))?(\(.*\))?", word) for word in gres.split(",")]
    found = [int(match[1] or 1) for match in counts if match]
    return sum(found) if found else None


def probe(env: Mapping[str, str]) -> NodeResources:
    """Look around. The environment is the step's own, in which Slurm tells what it gave."""
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
    """GPUs that processes of this step will see: by the variable that restricts them, else by their device files."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in env:
            return len([word for word in env[name].split(",") if word and word not in ("-1", "NoDevFiles")])
    devices = glob.glob("/dev/nvidia[0-9]*")
    return len(devices) or (0 if "SLURM_JOB_ID" in env else None)


def memory_limit(env: Mapping[str, str], root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """The least of the limits on this process: its cgroup and those above it, and what Slurm says. Huge if none."""
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
    """The limit files of this process's cgroup and of every one above it, in either version of cgroups."""
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
