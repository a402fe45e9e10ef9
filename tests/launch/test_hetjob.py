"""A job with groups as a hetjob: one block per group, one srun for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.launch.golden_scripts import check_bash, check_golden

from muster.errors import Mistake
from muster.launch import hetjob, plan
from muster.launch.plan import plan_run
from muster.launch.target import Target, choose_target
from muster.spec import JobSpec

GROUPS = [
    {"name": "trainers", "nodes": 2, "gpus_per_node": 8, "constraint": "a100&nvlink"},
    {"name": "actors", "nodes": 4, "cpus_per_node": 16, "gpus_per_node": 0, "partition": "cpu"},
]


def spec(**fields: Any) -> JobSpec:
    given = {"command": ["true"], "name": "mixed", "python": "python3", "runs_dir": "/shared/runs", "workdir": "/"}
    return JobSpec(**{**given, **fields})


SPECS = {
    "hetjob": spec(groups=GROUPS, partition="gpu", account="lab", time="2:00:00", exclude="n7"),
    "array": spec(array="0-7%2", nodes=2),
}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(plan, "new_run_id", lambda name: f"{name}-20260101T000000-ab12")
    return {kind: plan_run(job, Target("sbatch", job.nodes), Path("/")).script for kind, job in SPECS.items()}


@pytest.mark.parametrize("kind", SPECS)
def test_the_script_is_the_one_that_was_reviewed(scripts: dict[str, str], kind: str) -> None:
    check_golden(kind, scripts[kind])


@pytest.mark.parametrize("kind", SPECS)
def test_the_script_is_valid_bash(scripts: dict[str, str], kind: str) -> None:
    check_bash(scripts[kind])


def blocks(**fields: Any) -> list[dict[str, str | None]]:
    return hetjob.options(spec(groups=GROUPS, **fields), "/runs/r", "/")


def test_each_group_requests_its_nodes() -> None:
    first, second = blocks(partition="gpu")
    assert (first["nodes"], first["gpus-per-node"], first["partition"]) == ("2", "8", "gpu")
    assert (second["nodes"], second["gpus-per-node"], second["partition"]) == ("4", "0", "cpu")
    assert "exclusive" in first and "exclusive" not in second  # its CPUs were counted


def test_options_of_the_whole_job_are_only_in_the_first_block() -> None:
    first, second = blocks(time="30", dependency="afterok:1", signal="USR2@60", sbatch={"mail-type": "END"})
    whole = {"time", "dependency", "signal", "mail-type", "job-name", "output", "chdir"}
    assert whole <= set(first) and not whole & set(second)


def test_options_of_nodes_and_accounts_are_in_every_block() -> None:
    for block in blocks(account="lab", qos="high", exclude="n7", reservation="r"):
        assert {"account", "qos", "exclude", "reservation", "no-kill", "ntasks-per-node"} <= set(block)


def test_one_group_is_an_ordinary_job() -> None:
    job = spec(groups=GROUPS[:1])
    text = plan_run(job, Target("sbatch", job.nodes), Path("/")).script
    assert "hetjob" not in text and "--het-group" not in text and "#SBATCH --gpus-per-node=8" in text


def test_there_is_one_srun_and_its_command_is_written_once(scripts: dict[str, str]) -> None:
    lines = scripts["hetjob"].splitlines()
    (srun,) = [line for line in lines if line.startswith("setsid srun")]
    assert srun.count("--het-group=") == 2 and srun.count(" : ") == 1
    assert sum("exec" in line and "agent.pyz" in line for line in lines) == 1


# -- inside an allocation -----------------------------------------------------------------------------------------


def allocation(tmp_path: Path, **variables: str) -> dict[str, str]:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    return {"PATH": str(tmp_path), "SLURM_JOB_ID": "7", **variables}


def test_an_allocation_of_the_same_groups_is_used(tmp_path: Path) -> None:
    shape = {"SLURM_JOB_NUM_NODES_HET_GROUP_0": "2", "SLURM_JOB_NUM_NODES_HET_GROUP_1": "5"}
    env = allocation(tmp_path, SLURM_HET_SIZE="2", **shape)
    assert choose_target(spec(groups=GROUPS), env) == Target("allocation", 6)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SLURM_JOB_NUM_NODES": "6"}, "it has 1 group of nodes, and the job has 2"),
        (
            {
                "SLURM_HET_SIZE": "2",
                "SLURM_JOB_NUM_NODES_HET_GROUP_0": "2",
                "SLURM_JOB_NUM_NODES_HET_GROUP_1": "3",
            },
            "group actors needs 4 nodes, but the allocation has 3 in it",
        ),
    ],
)
def test_an_allocation_with_other_groups_is_refused(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    with pytest.raises(Mistake, match=words):
        choose_target(spec(groups=GROUPS), allocation(tmp_path, **variables))


def test_an_array_inside_an_allocation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="submit from outside"):
        choose_target(spec(array="0-3"), allocation(tmp_path))
