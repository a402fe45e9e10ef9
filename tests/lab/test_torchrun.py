"""`srun muster torchrun` needs no list of nodes and no endpoint on a real Slurm, and a killed node is replaced."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.conftest import REPOSITORY, SlurmCommand
from tests.running import wait_for
from tests.torch.conftest import needs_torch

LAB = {"nodes": 3}
MUSTER = (sys.executable, "-m", "muster.cli.main")
pytestmark = needs_torch

# The first time they wait to be killed or stopped; the rank is torchrun's, the node Slurm's.
TRAIN = """
import os, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
hold = os.path.exists("hold")
print(os.environ["SLURMD_NODENAME"], "is", dist.get_rank(), "of", int(total.item()), flush=True)
if hold:
    time.sleep(1000)
dist.destroy_process_group()
"""
# The same without torch, whose import takes seconds on a busy machine.
PLAIN = """
import os, time
hold = os.path.exists("hold")
print(os.environ["SLURMD_NODENAME"], "is", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if hold:
    time.sleep(1000)
"""


def test_a_spare_takes_the_place_of_a_killed_node_and_every_task_that_is_left_exits_with_0(slurm: SlurmCommand) -> None:
    (slurm.cwd / "hold").touch()
    log = slurm.cwd / "srun.log"
    srun = start(slurm, log, PLAIN, "--spares", "1")
    try:
        first, second, spare = slurm.live_nodes()
        wait_for("both ranks", lambda: log.read_text().count(" of 2\n") == 2, instead=log.read_text)
        assert f"{first} is 0 of 2" in log.read_text() and f"{second} is 1 of 2" in log.read_text()
        assert launchers_of(slurm, first) and launchers_of(slurm, spare)
        (slurm.cwd / "hold").unlink()
        slurm.lab.kill_node(second)
        wait_for("the second round", lambda: f"{spare} is 1 of 2" in log.read_text(), instead=log.read_text)
        wait_for("success", lambda: f"round 2 runs on {first}, {spare}" in log.read_text())
        wait_for("the launchers to leave", lambda: not launchers_of(slurm, first) + launchers_of(slurm, spare))
        said = log.read_text()
        assert not [line for line in said.splitlines() if "exit" in line and (first in line or spare in line)], said
    finally:
        srun.kill()
        srun.wait()
        slurm.lab.heal(second)


@pytest.mark.slow
def test_with_failover_the_job_succeeds_although_the_host_of_its_coordinator_dies(slurm: SlurmCommand) -> None:
    (slurm.cwd / "hold").touch()
    log = slurm.cwd / "srun.log"
    srun = start(slurm, log, TRAIN, "--spares", "1", "--failover-dir", str(slurm.cwd / "shared"))
    first, second, spare = slurm.live_nodes()
    try:
        wait_for("both ranks", lambda: log.read_text().count(" of 2\n") == 2, instead=log.read_text)
        assert f"{first} is 0 of 2" in log.read_text() and f"{second} is 1 of 2" in log.read_text()
        (slurm.cwd / "hold").unlink()
        slurm.lab.kill_node(first)  # the coordinator's
        wait_for(
            "the second round", lambda: f"round 2 runs on {second}, {spare}" in log.read_text(), instead=log.read_text
        )
        wait_for("its ranks", lambda: {f"{second} is 0 of 2", f"{spare} is 1 of 2"} <= set(lines(log)))
        wait_for("the launchers to leave", lambda: not launchers_of(slurm, second) + launchers_of(slurm, spare))
        (outcome,) = (slurm.cwd / "shared").glob("torchrun-*/outcome")
        assert json.loads(outcome.read_text())["exit_code"] == 0
        said = log.read_text()
        assert not [line for line in said.splitlines() if "exit" in line and (second in line or spare in line)], said
    finally:
        srun.kill()
        srun.wait()
        slurm.lab.heal(first)


@pytest.mark.slow
def test_10_a_coordinator_closes_a_round_without_taking_part_in_it(slurm: SlurmCommand) -> None:
    (slurm.cwd / "train.py").write_text(TRAIN)
    muster = shlex.join(MUSTER)
    coordinate, take_part = f"{muster} torchrun-coordinator --nnodes 2", f"{muster} torchrun --nnodes 2 train.py"
    part = f"if [ $SLURM_PROCID = 0 ]; then {coordinate}; else {take_part}; fi"
    done = subprocess.run(
        ["srun", "-N3", "--ntasks-per-node=1", "bash", "-c", part],
        cwd=slurm.cwd,
        env=environment(slurm),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, second, third = slurm.live_nodes()
    assert sorted(line for line in done.stdout.splitlines() if " of " in line) == [
        f"{second} is 0 of 2",
        f"{third} is 1 of 2",
    ]
    assert f"round 1 runs on {second}, {third}" in done.stderr and first not in done.stdout


def start(slurm: SlurmCommand, log: Path, program: str, *words: str) -> subprocess.Popen[bytes]:
    """Start `muster torchrun` of a program with these options on three nodes."""
    (slurm.cwd / "train.py").write_text(program)
    command = [*MUSTER, "torchrun", *words, "train.py"]
    with open(log, "w") as out:
        return subprocess.Popen(
            ["srun", "-N3", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", *command],
            cwd=slurm.cwd,
            env=environment(slurm),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines()


def environment(slurm: SlurmCommand) -> dict[str, str]:
    return {**os.environ, **slurm.env, "PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"}


def launchers_of(slurm: SlurmCommand, node: str) -> list[str]:
    found = slurm.on_node(node, "ps", "-eo", "args").stdout.splitlines()
    return [line for line in found if "muster.cli.main torchrun" in line]
