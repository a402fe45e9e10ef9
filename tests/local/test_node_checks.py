"""Built-in checks of nodes in runs on this machine. A program in place of nvidia-smi prints what that prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.running import MusterCommand

FIRST, SECOND = (f"GPU {n}: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-00000000000{n})" for n in range(2))
# Slurm has allocated two GPUs. Node 1 has lost one if the file `lost` is there.
NVIDIA_SMI = f"""#!/bin/sh
[ "$1" = -L ] || exit 1
echo "{FIRST}"
if [ "$MUSTER_RANK" = 1 ] && [ -e {{lost}} ]; then
  echo "Unable to determine the device handle for GPU1: Unknown Error"
else
  echo "{SECOND}"
fi
"""
REASON = "its check failed: gpu-count: 1 of 2 allocated GPUs are listed: Unable to determine the device handle for GPU1"


def gpus(muster: MusterCommand) -> tuple[Path, tuple[str, str]]:
    """Return the file whose existence breaks a GPU of node 1, and the option for nodes with GPUs."""
    lost, programs = muster.cwd / "lost", muster.cwd / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(NVIDIA_SMI.format(lost=lost))
    (programs / "nvidia-smi").chmod(0o755)
    return lost, ("--setup", f"export PATH={programs}:$PATH SLURM_GPUS_ON_NODE=2")


def roles(muster: MusterCommand) -> list[str]:
    return [node["role"] for node in muster.status()["nodes"]]


def evidence(muster: MusterCommand) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((muster.run_dir() / "attempt-0" / "bad-nodes.json").read_text())
    return found


def test_a_spare_stands_in_for_a_node_that_lacks_a_gpu_and_the_driver_never_runs_with_it(muster: MusterCommand) -> None:
    lost, setup = gpus(muster)
    lost.touch()
    done = muster.local(*setup, "--spares", "1", "--", "echo", "well", nodes=2)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
    assert roles(muster) == ["active", "excluded", "active"] and muster.status()["cycle"] == 0
    (one,) = evidence(muster)
    assert (one["host"], one["kind"]) == ("node-1", "check") and one["reason"].startswith(REASON)


def test_without_a_spare_the_run_ends_before_the_driver_and_says_why(muster: MusterCommand) -> None:
    lost, setup = gpus(muster)
    lost.touch()
    done = muster.local(*setup, "--", "echo", "well", nodes=2)
    assert (done.returncode, done.stdout) == (125, ""), done.stderr
    assert "node-1" in done.stderr and REASON in done.stderr
    assert muster.local(*setup, "--node-check", "gpu-count=off", "--", "true", nodes=2).returncode == 0


def test_a_node_that_fails_its_check_only_under_load_is_not_used_in_the_next_cycle(muster: MusterCommand) -> None:
    lost, setup = gpus(muster)
    load = f"echo cycle $MUSTER_CYCLE; [ $MUSTER_CYCLE != 0 ] || {{ touch {lost}; exit 7; }}"
    restart = ("--restart-on-driver-failure", "--spares", "1")
    done = muster.local(*setup, *restart, "--", "bash", "-c", load, nodes=2)
    assert done.returncode == 0 and "cycle 1" in done.stdout, done.stderr
    assert roles(muster) == ["active", "excluded", "active"]
    assert [(one["host"], one["kind"]) for one in evidence(muster)] == [("node-1", "check")]


def test_nodes_are_checked_after_the_failure_that_ends_the_run(muster: MusterCommand) -> None:
    lost, setup = gpus(muster)
    done = muster.local(*setup, "--", "bash", "-c", f"touch {lost}; exit 7", nodes=3)
    assert done.returncode == 7, done.stderr
    assert [(one["host"], one["kind"]) for one in evidence(muster)] == [("node-1", "check")]


def test_a_waiting_spare_that_loses_a_gpu_is_unhealthy_until_it_has_it_again(muster: MusterCommand) -> None:
    lost, setup = gpus(muster)
    log = f"{muster.cwd}/muster-runs/*/attempt-0/phases.log"
    wait = 'until grep -q "node-1 {}" ' + log + "; do sleep 0.1; done"
    driver = f"touch {lost}; {wait.format('is unhealthy')}; rm {lost}; {wait.format('is healthy again')}"
    options = ("--spares", "1", "--spare-check-interval", "0.2s")
    done = muster.local(*setup, *options, "--", "bash", "-c", driver, nodes=1)
    assert done.returncode == 0, done.stderr


def test_every_check_runs_on_this_machine_and_none_fails(muster: MusterCommand) -> None:
    options = ("--node-checks", "all", "--node-check", "leftovers=off", "--node-check", "cpu-speed=0.01",
               "--node-check", "memory-speed=0.01")  # fmt: skip
    done = muster.local(*options, "--", "echo", "well", nodes=1)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
