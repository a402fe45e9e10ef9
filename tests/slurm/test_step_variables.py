"""Variables of a step: which ones no other program may inherit, and the shell code that removes them."""

from __future__ import annotations

import os
import subprocess

import pytest

from muster.slurm.step_variables import affects_further_step, belongs_to_step, unset_arguments

FURTHER_STEP = ["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_MEM_BIND_LIST"]
FURTHER_STEP += ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_DISTRIBUTION", "SLURM_STDERRMODE"]
TASK = ["SLURM_TASK_PID", "SLURM_SRUN_COMM_HOST", "SLURM_LAUNCH_NODE_IPADDR", "PMI_RANK", "PMI2_SIZE", "PMIX_RANK"]
JOB = ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NNODES", "SLURM_CPUS_ON_NODE", "SLURM_CONF", "PATH", "PMI"]


@pytest.mark.parametrize("name", FURTHER_STEP)
def test_options_of_a_further_step_belong_to_the_step(name: str) -> None:
    assert affects_further_step(name) and belongs_to_step(name)


@pytest.mark.parametrize("name", TASK)
def test_variables_of_a_task_belong_to_the_step_but_are_no_options(name: str) -> None:
    assert belongs_to_step(name) and not affects_further_step(name)


@pytest.mark.parametrize("name", JOB)
def test_variables_of_the_job_do_not_belong_to_the_step(name: str) -> None:
    assert not belongs_to_step(name) and not affects_further_step(name)


def test_the_shell_unsets_exactly_the_variables_that_affect_a_further_step() -> None:
    names = [*FURTHER_STEP, *TASK, *JOB]
    script = f"unset {unset_arguments()}\nenv -0"
    env = {**dict.fromkeys(names, "1"), "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    left = {line.partition("=")[0] for line in done.stdout.split("\0")}
    assert {name for name in names if name not in left} == set(FURTHER_STEP)


def test_no_line_of_the_shell_code_is_longer_than_a_line_of_the_sources() -> None:
    lines = f"unset {unset_arguments()} ".split("\n")
    assert len(lines) > 1 and all(len(line) <= 120 for line in lines)
