"""What the environment says of a launcher's place: which node it is, of how many, and where they meet. Pure.

Known are a step of Slurm's (`srun`, one task on each node) and a gang of Muster's own with one process on each node.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ClusterShell.NodeSet import NodeSet, NodeSetException

from muster.ports.ranges import HostPorts, host_ports

PORTS = range(20000, 30000)  # below the usual range from which the kernel takes the ports of outgoing connections
FEWEST_PORTS = 100  # fewer, and steps that share a host would meet too often: then rather those of PORTS


@dataclass(frozen=True)
class LaunchEnvironment:
    """As far as it is known; what is not, the launcher's options must say."""

    host: str
    number: int | None = None  # of this node
    hosts: tuple[str, ...] = ()
    nodes: int | None = None
    endpoint: str | None = None
    run_id: str | None = None


def launch_environment(environ: Mapping[str, str] = os.environ) -> LaunchEnvironment:
    """A gang's variables come first: those of Slurm's job stand beside them."""
    host = environ.get("SLURMD_NODENAME") or socket.gethostname()
    if "MUSTER_RUN_ID" in environ and environ.get("LOCAL_WORLD_SIZE") == "1" and "MASTER_PORT" in environ:
        return _of_gang(host, environ)
    if environ.get("SLURM_STEP_ID", "").isdigit() and environ.get("SLURM_PROCID", "").isdigit():
        return _of_step(host, environ)
    return LaunchEnvironment(host)


def _of_gang(host: str, environ: Mapping[str, str]) -> LaunchEnvironment:
    life = (environ.get(name, "0") for name in ("MUSTER_ATTEMPT", "MUSTER_CYCLE"))
    address = environ["MASTER_ADDR"]
    return LaunchEnvironment(
        host,
        number=int(environ["GROUP_RANK"]),
        nodes=int(environ["GROUP_WORLD_SIZE"]),
        endpoint=f"{f'[{address}]' if ':' in address else address}:{environ['MASTER_PORT']}",
        run_id=".".join((environ["MUSTER_RUN_ID"], *life)),
    )


def _of_step(host: str, environ: Mapping[str, str]) -> LaunchEnvironment:
    hosts: tuple[str, ...] = ()
    with contextlib.suppress(NodeSetException):
        hosts = tuple(NodeSet(environ.get("SLURM_STEP_NODELIST", ""), resolver=None))
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
    job, step = environ.get("SLURM_JOB_ID", "0"), environ["SLURM_STEP_ID"]
    return LaunchEnvironment(
        host,
        number=int(environ["SLURM_PROCID"]),
        hosts=hosts,
        nodes=int(tasks) if tasks else len(hosts) or None,
        endpoint=f"{hosts[0]}:{port_of(job, step)}" if hosts else None,
        run_id=f"{job}.{step}",
    )


def port_of(job: str, step: str, host: HostPorts | None = None) -> int:
    """One that all nodes of a step agree on without a word; jobs that follow each other have different ones.

    Nodes agree since their kernels are set up alike: the port is one of PORTS, unless those are in the ephemeral range.
    Then it is in the longest run of ports that are outside it and outside NeMo-RL's bands.

    >>> port_of("4711", "0", HostPorts()), port_of("4711", "1", HostPorts())
    (24711, 22630)
    >>> port_of("4711", "0", HostPorts((9000, 65000)))
    65432
    """
    best = (host or host_ports()).zones()[0]
    ports = PORTS
    if best.preferred and not any(run.start <= PORTS.start and PORTS.stop <= run.stop for run in best.runs):
        longest = max(best.runs, key=len)
        ports = longest if len(longest) >= FEWEST_PORTS else PORTS
    return ports[(int(job) + 7919 * int(step)) % len(ports)]
