"""The launch environment of torchrun from environment variables: this node, the number of nodes, and the endpoint.

Supported are Slurm steps (`srun`, one task per node) and gangs of Muster with one process per node.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ClusterShell.NodeSet import NodeSet, NodeSetException

from muster.ports.ranges import HostPorts, host_ports

ENDPOINT_PORTS = range(20000, 30000)  # below the kernel's usual range for outgoing connections
MIN_PORTS = 100  # with fewer, steps that share a host would collide too often: then use ENDPOINT_PORTS


@dataclass(frozen=True)
class LaunchEnvironment:
    """The known part of the environment; options must give the rest."""

    host: str
    node_index: int | None = None  # of this node
    hosts: tuple[str, ...] = ()
    nodes: int | None = None
    endpoint: str | None = None
    run_id: str | None = None


def launch_environment(environ: Mapping[str, str] = os.environ) -> LaunchEnvironment:
    """Read the environment. The variables of a gang have priority over those of the Slurm job around it."""
    host = environ.get("SLURMD_NODENAME") or socket.gethostname()
    if "MUSTER_RUN_ID" in environ and environ.get("LOCAL_WORLD_SIZE") == "1" and "MASTER_PORT" in environ:
        return _of_gang(host, environ)
    if environ.get("SLURM_STEP_ID", "").isdigit() and environ.get("SLURM_PROCID", "").isdigit():
        return _of_step(host, environ)
    return LaunchEnvironment(host)


def _of_gang(host: str, environ: Mapping[str, str]) -> LaunchEnvironment:
    attempt_and_cycle = (environ.get(name, "0") for name in ("MUSTER_ATTEMPT", "MUSTER_CYCLE"))
    address = environ["MASTER_ADDR"]
    return LaunchEnvironment(
        host,
        node_index=int(environ["GROUP_RANK"]),
        nodes=int(environ["GROUP_WORLD_SIZE"]),
        endpoint=f"{f'[{address}]' if ':' in address else address}:{environ['MASTER_PORT']}",
        run_id=".".join((environ["MUSTER_RUN_ID"], *attempt_and_cycle)),
    )


def _of_step(host: str, environ: Mapping[str, str]) -> LaunchEnvironment:
    hosts: tuple[str, ...] = ()
    with contextlib.suppress(NodeSetException):
        hosts = tuple(NodeSet(environ.get("SLURM_STEP_NODELIST", ""), resolver=None))
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
    job, step = environ.get("SLURM_JOB_ID", "0"), environ["SLURM_STEP_ID"]
    restart = environ.get("SLURM_RESTART_COUNT", "0")  # a requeued job has the same ids
    return LaunchEnvironment(
        host,
        node_index=int(environ["SLURM_PROCID"]),
        hosts=hosts,
        nodes=int(tasks) if tasks else len(hosts) or None,
        endpoint=f"{hosts[0]}:{step_port(job, step)}" if hosts else None,
        run_id=f"{job}.{step}" if restart == "0" else f"{job}.{step}.{restart}",
    )


def step_port(job: str, step: str, host: HostPorts | None = None) -> int:
    """Return a port that all nodes of a step derive without communication. Consecutive jobs get different ports.

    Nodes agree because their kernels are configured alike: the port is in ENDPOINT_PORTS, unless those overlap the
    ephemeral range. Then it is in the longest run of ports outside that range and outside NeMo-RL's bands.

    >>> step_port("4711", "0", HostPorts()), step_port("4711", "1", HostPorts())
    (24711, 22630)
    >>> step_port("4711", "0", HostPorts((9000, 65000)))
    65432
    """
    best = (host or host_ports()).zones()[0]
    ports = ENDPOINT_PORTS
    if best.preferred and not any(
        run.start <= ENDPOINT_PORTS.start and ENDPOINT_PORTS.stop <= run.stop for run in best.runs
    ):
        longest = max(best.runs, key=len)
        ports = longest if len(longest) >= MIN_PORTS else ENDPOINT_PORTS
    return ports[(int(job) + 7919 * int(step)) % len(ports)]
