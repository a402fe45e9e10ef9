"""The table of faults: what is done to a run, what it must say, and what a person should know of it.

`test_faults.py` inflicts each on a real Slurm; `make failures` makes docs/reference/failures.md from what it saw.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.lab.conftest import SlurmCommand, agent_on, process_on

READY = ("--", "bash", "-c", "echo ready; sleep 1000")
# A --setup that ends when its server listens.
LISTEN_ON_1500 = (
    "python3 -m http.server 1500 >/dev/null 2>&1 & until (: </dev/tcp/127.0.0.1/1500) 2>/dev/null; do sleep 0.1; done"
)
PROCESS_S, SILENT_HOST_S = 3.0, 15.0  # what the run's end may take after the fault


def nothing(slurm: SlurmCommand) -> None:
    """The options alone provoke it."""


@dataclass(frozen=True)
class Fault:
    """One row. `inflict` is called once the driver runs; without it the options are the fault."""

    name: str
    says: str  # in what `muster run` prints
    cause: str
    advice: str
    code: int = 125
    inflict: Callable[[SlurmCommand], None] | None = None
    bound: float | None = None  # seconds from the fault to the recorded end
    ray: bool = False
    nodes: int = 3
    options: tuple[str, ...] = ()
    driver: tuple[str, ...] = READY
    mend: Callable[[SlurmCommand], None] = nothing


def kill_agent(node: str) -> Callable[[SlurmCommand], None]:
    return lambda slurm: os.kill(agent_on(slurm, node), signal.SIGKILL)


def kill_process(node: str, name: str) -> Callable[[SlurmCommand], None]:
    return lambda slurm: os.kill(process_on(slurm, node, name), signal.SIGKILL)


def heal(node: str) -> Callable[[SlurmCommand], None]:
    def mend(slurm: SlurmCommand) -> None:
        slurm.slurm("sh", "-c", "scancel $(squeue --noheader --format=%A)")
        slurm.lab.heal(node)

    return mend


FAULTS = [
    Fault(
        "an agent is killed",
        "the agent of n2 is gone: its connection ended",
        "Something on the node killed the agent: the OOM killer, an administrator, a wrong `kill`.",
        "See the node's kernel log. With too little memory: `--mem`, or fewer processes on a node.",
        inflict=kill_agent("n2"),
        bound=PROCESS_S,
    ),
    Fault(
        "the leader is killed",
        "n1",
        "The agent of the first node was killed; it also ran the driver, which ended with it.",
        "As above; the driver itself may be what used the node's memory. `--dedicated-head` keeps tasks off that node.",
        inflict=kill_agent("n1"),
        bound=PROCESS_S,
    ),
    Fault(
        "a raylet is killed",
        "Ray's raylet was",
        "Ray's daemon on that node was killed, most often by the OOM killer.",
        "Give the node's tasks less memory, or Ray a smaller `--object-store-memory`; its logs are in `logs/ray/`.",
        inflict=kill_process("n2", "raylet"),
        bound=PROCESS_S,
        ray=True,
        nodes=2,
    ),
    Fault(
        "Ray's control service is killed",
        "Ray's gcs_server was ended by SIGKILL",
        "The GCS on the head was killed, and `--no-gcs-recovery` is set: by default it is restarted with its state "
        "([gcs-recovery.md](../explanation/gcs-recovery.md)).",
        "As for a raylet; at size, `--dedicated-head` leaves it the node.",
        options=("--no-gcs-recovery",),
        inflict=kill_process("n1", "gcs_server"),
        bound=PROCESS_S,
        ray=True,
        nodes=2,
    ),
    Fault(
        "a node dies",
        "n3",
        "The host went down: power, kernel, hardware. Where its network goes with it, that is noticed by its silence.",
        "Nothing to do with the job; exclude the node (`-x`) if it happens again.",
        inflict=lambda slurm: slurm.lab.kill_node("n3"),
        bound=SILENT_HOST_S,
        mend=heal("n3"),
    ),
    Fault(
        "a node falls silent",
        "the agent of n3 fell silent: no heartbeat for 11 s",
        "The node, or its network, does not answer any more.",
        "The node's log and the fabric's; exclude the node (`-x`) if it happens again.",
        inflict=lambda slurm: slurm.lab.partition("n3"),
        bound=SILENT_HOST_S,
        mend=heal("n3"),
    ),
    Fault(
        "the driver is killed",
        "the driver was ended by SIGKILL",
        code=137,
        cause="Something killed the driver itself: most often the OOM killer.",
        advice="See the end of its output above and the node's kernel log.",
        inflict=lambda slurm: os.kill(process_on(slurm, "n1", "sleep"), signal.SIGKILL),
        bound=PROCESS_S,
        driver=("--", "bash", "-c", "echo ready; exec sleep 1000"),
    ),
    Fault(
        "the driver fails",
        "the driver exited with 7",
        code=7,
        cause="Your command ended with this code; it is the job's code too.",
        advice="See its output: `muster logs`.",
        driver=("--", "bash", "-c", "echo 'Traceback: no such dataset' >&2; exit 7"),
    ),
    Fault(
        "the driver stalls",
        "the driver stalled: no output and no muster.beat() for 2 s",
        "The driver printed nothing, and nothing called `muster.beat()`, for longer than `--stall-timeout`.",
        "`logs/stacks-<rank>.txt` shows where every process was.",
        options=("--stall-timeout", "2"),
    ),
    Fault(
        "a set-up fails",
        "--setup failed with code 3",
        "The shell text given with `--setup` ended with a code on that node.",
        "`muster logs --node N` shows what it printed.",
        options=("--setup", "if [ $SLURMD_NODENAME = n2 ]; then echo 'module: not found'; (exit 3); fi"),
    ),
    Fault(
        "a node is not healthy",
        "(index 1) failed in phase 'start': --health-check failed: GPU 3 is gone (code 1)",
        "The command given with `--health-check` failed on that node; its last line is quoted.",
        "Exclude the node (`-x n2`) and tell the administrators.",
        options=("--health-check", "if [ $SLURMD_NODENAME = n2 ]; then echo 'GPU 3 is gone'; false; fi"),
    ),
    Fault(
        "a node has other GPUs",
        "n2: this step has 1 GPU, 2 were asked for",
        ray=True,
        nodes=2,
        cause="Fewer (or more) GPUs are visible inside the step than the job asked for.",
        advice="Compare `--gpus-per-node`/`--gres` with what the partition has; a GPU may have been lost.",
        options=("--gpus-per-node", "2", "--setup", "[ $SLURMD_NODENAME != n2 ] || export CUDA_VISIBLE_DEVICES=0"),
    ),
    Fault(
        "no such Python on the nodes",
        "no Python interpreter at python3.99",
        "The interpreter chosen for the nodes is not there.",
        "`--python PATH`, or load it with `--setup 'module load ...'`.",
        options=("--python", "python3.99"),
    ),
    Fault(
        "`ray start` fails",
        "`ray start` exited with 1 (try 3 of 3)",
        ray=True,
        nodes=2,
        cause="Ray did not start on that node, three times over; the last lines of the node's log follow.",
        advice="`muster logs --node N` has Ray's own words of each try.",
        options=("--setup", "[ $SLURMD_NODENAME != n2 ] || export RAY_START_HOOK=no.such.hook"),
    ),
    Fault(
        "a node never arrives",
        "n2 did not arrive within 3 s",
        "The node's agent did not reach the leader: a slow filesystem, a set-up that hangs, a closed network.",
        "`muster logs --node N` shows how far it came; `--gather-timeout` if it is only slow.",
        nodes=2,  # the leader only: no other node can be late, too
        options=("--gather-timeout", "3", "--setup", "[ $SLURMD_NODENAME != n2 ] || sleep 100"),
    ),
    Fault(
        "the ports are taken",
        "no free ports for Ray: something listens in 1024-2023",
        ray=True,
        nodes=1,
        cause="With `--port-base` the block is fixed, and something uses a port of it on that node.",
        advice="Another base, or none: then every node finds a free block by itself.",
        options=("--port-base", "1024", "--setup", LISTEN_ON_1500),
    ),
]
