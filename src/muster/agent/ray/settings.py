"""Options, environment, ports and directories of a Ray node. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster.agent.ray import labels
from muster.agent.ray.labels import NodeFacts
from muster.agent.ray.resources import ResourceShare
from muster.ports.blocks import BLOCK_SIZE, LOCAL_BLOCK_SIZE, PortBlock, smallest_size

# AF_UNIX paths have at most 107 bytes, and Ray appends about 62 for its session and socket names.
LONGEST_TEMP_DIR = 45


@dataclass(frozen=True)
class RayOptions:
    """The job's options for a Ray node, as the leader sends them to the agents."""

    cpus: int | None
    gpus: int | None
    dashboard: bool
    nodes: int
    local: bool
    port_base: int | None = None  # pinned by the user; else each node leases a free block
    dedicated_head: bool = False
    head_cpus: bool = False  # a dedicated head keeps its CPUs
    start_args: tuple[str, ...] = ()  # further arguments of `ray start`
    resources: Mapping[str, int] = field(default_factory=dict)  # the job's, besides Muster's
    labels: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()  # variables that Ray's processes do not get; NAME* for all that begin with NAME
    gpu_affinity_file: str | None = None  # see gpu_affinity.py
    store: int | None = None  # bytes of the object store; else derived from the node's memory
    large_from: int = 64
    logs: str = "on-failure"  # when Ray's logs are kept: always, on-failure, never
    logs_max: int = 64 * 1024**2
    require_auth: bool = False  # refuse a Ray without tokens
    group: str | None = None  # in a job with node groups
    gcs_recovery: bool = True  # restart Ray's control service if it exits

    def is_dedicated_head(self, rank: int) -> bool:
        """Return whether Ray gets no GPUs of this node, and CPUs only with `head_cpus`."""
        return rank == 0 and self.dedicated_head


def temp_dir(run_id: str, attempt: int, cycle: int, node_index: int, root: str = "/tmp") -> str:
    """Return a short path, new for each attempt and cycle: Ray refuses to start over an older session."""
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:8]
    path = os.path.join(root, f"muster-{digest}", f"{attempt}.{cycle}.{node_index}")
    if len(path) + len(".0") > LONGEST_TEMP_DIR:
        raise ValueError(f"the temporary directory {path} is too long for Ray's sockets (at most {LONGEST_TEMP_DIR})")
    return path


def environment(base: Mapping[str, str], token_file: str, tuning: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of all processes that connect to this Ray cluster: daemons, workers, driver."""
    return {
        **tuning,
        **{name: value for name, value in base.items() if name != "RAY_AUTH_TOKEN"},  # it has priority over the file
        # Always explicit: a token file in a home directory would enable authentication for some processes only.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's own subreaper would end our supervisors.
        "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "false",
    }


def without_variables(base: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    """Return the environment without the variables that a name or `NAME*` describes.

    >>> without_variables({"SLURM_JOB_ID": "7", "OMPI": "1", "PATH": "/bin"}, ["SLURM_*", "OMPI_*"])
    {'OMPI': '1', 'PATH': '/bin'}
    """
    names = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return {name: value for name, value in base.items() if not (name in names or name.startswith(prefixes))}


def block_size(options: RayOptions) -> int:
    """Return the number of ports for several worker processes per CPU; less if virtual nodes share one machine."""
    smallest = LOCAL_BLOCK_SIZE if options.local else BLOCK_SIZE
    return max(smallest, math.ceil(4 * (options.cpus or 0) / 100) * 100)


def smallest_block(options: RayOptions, cpus: int) -> int:
    """Return the minimum number of ports for a node with this many CPUs, used if larger blocks do not fit."""
    return min(block_size(options), smallest_size(cpus, options.local))


def pinned_base(options: RayOptions, node_index: int) -> int | None:
    """Return the first port of a pinned block: the same on every node; virtual nodes have consecutive blocks."""
    if options.port_base is None:
        return None
    return options.port_base + (node_index * block_size(options) if options.local else 0)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def start_arguments(options: RayOptions, facts: NodeFacts, share: ResourceShare, address: str, temp: str) -> list[str]:
    """Return the arguments of `ray start` for both head and workers, except ports."""
    dedicated = options.is_dedicated_head(facts.rank)
    named = {**labels.labels(facts, dedicated), **options.labels}
    resources = {**labels.resources(facts, share.gpus, dedicated), **options.resources}
    args = [
        f"--node-ip-address={address}",
        f"--temp-dir={temp}",
        f"--num-cpus={share.cpus if options.head_cpus or not dedicated else 0}",
        f"--object-store-memory={share.store}",
        f"--labels={','.join(f'{key}={value}' for key, value in named.items())}",
        f"--resources={json.dumps(resources)}",
        "--disable-usage-stats",
        "--log-color=false",
    ]
    if share.memory is not None:
        args.append(f"--memory={share.memory}")
    if share.gpus is not None or dedicated:
        args.append(f"--num-gpus={0 if dedicated else share.gpus}")
    return [*args, *options.start_args]


def head_arguments(options: RayOptions, ports: PortBlock) -> list[str]:
    """Return the arguments of `ray start` for the head. The dashboard listens on loopback."""
    head = ["--head", f"--port={ports.gcs}"]
    if not options.dashboard:
        return [*head, "--include-dashboard=false"]
    return [*head, "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={ports.dashboard}"]
