"""The environment of the driver and of Ray's processes: the job's variables, not the step's, and Muster's."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from muster.agent.environment import given_variables, job_environment, node_environment, path_with_interpreter
from muster.agent.job import Identity
from muster.rundir import RunPaths, write_atomic

RUN = RunPaths("/lustre/muster-runs/train-20260101T000000-ab12")
IDENTITY = Identity(node_index=0, host="n0", run=RUN, attempt=RUN.attempt(0), local=False)


def environment(
    base: dict[str, str], given: dict[str, str] | None = None, attempt: int = 0, cycle: int = 0
) -> dict[str, str]:
    return job_environment(base, given or {}, replace(IDENTITY, attempt=RUN.attempt(attempt)), cycle)


def test_the_driver_s_environment_names_its_run_and_attempt() -> None:
    env = environment({}, attempt=2, cycle=1)
    assert env["MUSTER_RUN_ID"] == "train-20260101T000000-ab12"
    assert (env["MUSTER_ATTEMPT"], env["MUSTER_CYCLE"]) == ("2", "1")
    assert env["MUSTER_OUTPUT_DIR"] == f"{RUN.root}/output"


@pytest.mark.parametrize(("attempt", "cycle", "resume"), [(0, 0, "0"), (1, 0, "1"), (0, 1, "1"), (3, 2, "1")])
def test_every_start_but_the_first_is_a_resumption(attempt: int, cycle: int, resume: str) -> None:
    assert environment({}, attempt=attempt, cycle=cycle)["MUSTER_RESUME"] == resume


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_STEP_NODELIST",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_GTIDS",
        "SLURM_TASK_PID",
        "SLURM_SRUN_COMM_HOST",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_CPU_BIND",
        "SLURM_CPU_BIND_TYPE",
        "SLURM_MEM_BIND",
        "SLURM_DISTRIBUTION",
        "SLURM_UMASK",
        "SLURM_TASKS_PER_NODE",
        "SLURM_NTASKS",
        "SLURM_NPROCS",
        "SLURM_NTASKS_PER_NODE",  # it would limit the tasks of a further step to one per node
        "SLURM_CPUS_PER_TASK",
        "SLURM_OVERLAP",
        "PMI_RANK",
        "PMIX_RANK",
        "PMI2_SIZE",
    ],
)
def test_variables_of_the_agent_s_step_are_removed(name: str) -> None:
    assert name not in environment({name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_NNODES",
        "SLURM_CPUS_ON_NODE",
        "SLURM_CONF",
        "CUDA_VISIBLE_DEVICES",
        "LANG",
    ],
)
def test_variables_of_the_job_are_kept(name: str) -> None:
    assert environment({name: "kept"})[name] == "kept"


@pytest.mark.parametrize("name", ["MUSTER_RANK", "MUSTER_HOST", "MUSTER_BACKEND", "MUSTER_JOB_START", "RAY_ADDRESS"])
def test_variables_of_the_agent_are_removed(name: str) -> None:
    """RAY_ADDRESS too: it names the cluster of the submitting shell, not this run's."""
    assert name not in environment({name: "1"})


def test_the_user_s_variables_override_the_base_but_not_those_of_the_run() -> None:
    env = environment({"LANG": "C"}, {"LANG": "de_DE", "SEED": "7", "MUSTER_RUN_ID": "forged"})
    assert (env["LANG"], env["SEED"]) == ("de_DE", "7")
    assert env["MUSTER_RUN_ID"] == RUN.run_id


def test_a_variable_of_the_step_s_kind_that_the_user_gave_is_kept() -> None:
    assert environment({"SLURM_NTASKS": "4"}, {"SLURM_NTASKS": "8"})["SLURM_NTASKS"] == "8"


def test_python_s_output_is_not_buffered_unless_the_user_wants_it() -> None:
    assert environment({})["PYTHONUNBUFFERED"] == "1"
    assert environment({"PYTHONUNBUFFERED": ""})["PYTHONUNBUFFERED"] == ""
    assert environment({}, {"PYTHONUNBUFFERED": "0"})["PYTHONUNBUFFERED"] == "0"


LIBRARY = f"{RUN.root}/muster-library.zip"


@pytest.mark.parametrize(
    ("there", "path"),
    [
        ({}, LIBRARY),
        ({"PYTHONPATH": ""}, LIBRARY),  # an empty entry would mean the working directory
        ({"PYTHONPATH": "/mine:/too"}, f"/mine:/too:{LIBRARY}"),
        ({"PYTHONPATH": "/mine:/runs/outer/muster-library.zip"}, f"/mine:{LIBRARY}"),
    ],
)
def test_the_run_s_library_comes_after_the_user_s_path(there: dict[str, str], path: str) -> None:
    assert environment(there)["PYTHONPATH"] == path
    assert environment({"PYTHONPATH": "/before"}, {"PYTHONPATH": "", **there})["PYTHONPATH"] == path


def test_a_run_directory_that_no_path_can_name_is_left_out() -> None:
    run = RunPaths("/odd:name/run")
    assert job_environment({"PYTHONPATH": "/mine"}, {}, replace(IDENTITY, run=run), 0)["PYTHONPATH"] == "/mine"


def test_the_base_is_not_modified() -> None:
    base = {"SLURM_PROCID": "0", "PATH": "/usr/bin"}
    environment(base, {"SEED": "7"})
    assert base == {"SLURM_PROCID": "0", "PATH": "/usr/bin"}


@pytest.mark.parametrize("path", ["/usr/bin:/bin", "", "/no/such/directory"])
def test_python_on_the_path_is_the_interpreter_of_the_job(path: str) -> None:
    assert shutil.which("python", path=path_with_interpreter(path)) == os.path.join(
        os.path.dirname(sys.executable), "python"
    )


def test_a_path_on_which_it_already_is_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert path_with_interpreter(f"{tmp_path}:/usr/bin") == f"{tmp_path}:/usr/bin"


def test_the_user_s_variables_are_read_from_the_run(tmp_path: Path) -> None:
    run = RunPaths(str(tmp_path))
    write_atomic(run.env, '{"KEY": "sécret\\n"}', mode=0o600)
    assert given_variables(replace(IDENTITY, run=run)) == {"KEY": "sécret\n"}


def test_a_node_s_environment_is_that_of_the_agent_with_the_user_s_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = replace(IDENTITY, run=RunPaths(str(tmp_path)))
    write_atomic(identity.run.env, '{"SEED": "7"}', mode=0o600)
    monkeypatch.setenv("MUSTER_TEST_OF_THE_AGENT", "kept")
    monkeypatch.setenv("SLURM_PROCID", "0")
    env = node_environment(identity, 3)
    assert (env["MUSTER_TEST_OF_THE_AGENT"], env["SEED"], env["MUSTER_CYCLE"]) == ("kept", "7", "3")
    assert "SLURM_PROCID" not in env
    given = node_environment(identity, 3, {"LANG": "C"})
    assert given["LANG"] == "C" and "MUSTER_TEST_OF_THE_AGENT" not in given


def test_a_node_without_the_user_s_variables_has_no_environment(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        node_environment(replace(IDENTITY, run=RunPaths(str(tmp_path))), 0)
