"""The target of a job, its number of nodes and its interpreter, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.errors import BackendError
from muster.launch.target import Target, choose_python, choose_target
from muster.spec import JobSpec

IN_ALLOCATION = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "4"}


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], **fields})


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


# -- the place --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "programs", "env", "place"),
    [
        ("auto", [], {}, Target("local", 2)),
        ("auto", ["sbatch", "srun"], {}, Target("sbatch", 2)),
        ("auto", ["sbatch", "srun"], IN_ALLOCATION, Target("allocation", 2)),
        ("auto", ["srun"], IN_ALLOCATION, Target("allocation", 2)),
        ("auto", [], IN_ALLOCATION, Target("local", 2)),
        ("slurm", ["sbatch", "srun"], {}, Target("sbatch", 2)),
        ("slurm", ["sbatch", "srun"], IN_ALLOCATION, Target("allocation", 2)),
        ("local", ["sbatch", "srun"], {}, Target("local", 2)),
        ("local", ["sbatch", "srun"], IN_ALLOCATION, Target("local", 2)),
    ],
)
def test_the_target_is_chosen_as_in_the_table(
    tmp_path: Path, backend: str, programs: list[str], env: dict[str, str], place: Target
) -> None:
    for program in programs:
        make_program(tmp_path / program)
    assert choose_target(job(backend=backend, nodes=2), {"PATH": str(tmp_path), **env}) == place


@pytest.mark.parametrize(("nodes", "spares", "used"), [("2-3", 0, 3), ("2-8", 0, 4), ("2-8", 1, 3)])
def test_a_range_of_nodes_uses_what_the_allocation_has(tmp_path: Path, nodes: str, spares: int, used: int) -> None:
    make_program(tmp_path / "srun")
    target = choose_target(job(nodes=nodes, spares=spares), {"PATH": str(tmp_path), **IN_ALLOCATION})
    assert target == Target("allocation", used)


def test_an_allocation_with_fewer_nodes_than_the_range_is_refused(tmp_path: Path) -> None:
    make_program(tmp_path / "srun")
    with pytest.raises(BackendError, match="has 4 nodes, too few for --nodes 5"):
        choose_target(job(nodes="5-8"), {"PATH": str(tmp_path), **IN_ALLOCATION})


@pytest.mark.parametrize("env", [{}, IN_ALLOCATION])
def test_slurm_without_sbatch_is_an_error_with_a_remedy(tmp_path: Path, env: dict[str, str]) -> None:
    with pytest.raises(BackendError, match=r"sbatch is not on PATH.*--backend local"):
        choose_target(job(backend="slurm"), {"PATH": str(tmp_path), **env})


@pytest.mark.parametrize(
    ("place", "backend", "attached"),
    [("local", "local", True), ("allocation", "slurm", True), ("sbatch", "slurm", False)],
)
def test_only_a_submitted_job_outlives_the_command(place: str, backend: str, attached: bool) -> None:
    assert (Target(place, 1).backend, Target(place, 1).attached) == (backend, attached)


@pytest.mark.parametrize(
    ("fields", "env", "nodes"),
    [
        ({}, {}, 4),
        ({"nodes": 4}, {}, 4),
        ({"nodes": 1}, {}, 1),
        ({}, {"SLURM_JOB_NUM_NODES": ""}, 1),
        ({}, {"SLURM_JOB_NUM_NODES": "", "SLURM_NNODES": "3"}, 3),
    ],
)
def test_all_nodes_of_an_allocation_are_used_unless_nodes_is_given(
    tmp_path: Path, fields: dict[str, int], env: dict[str, str], nodes: int
) -> None:
    make_program(tmp_path / "srun")
    assert choose_target(job(**fields), {"PATH": str(tmp_path), **IN_ALLOCATION, **env}) == Target("allocation", nodes)


@pytest.mark.parametrize(("have", "said"), [("4", "job 42) has 4 nodes"), ("1", "job 42) has 1 node,")])
def test_an_allocation_that_is_too_small_is_reported(tmp_path: Path, have: str, said: str) -> None:
    make_program(tmp_path / "srun")
    with pytest.raises(BackendError, match="too few for --nodes 5") as error:
        choose_target(job(nodes=5), {"PATH": str(tmp_path), **IN_ALLOCATION, "SLURM_JOB_NUM_NODES": have})
    assert said in str(error.value)


# -- the interpreter --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        ({"asked", "virtualenv", "conda", "beside"}, "asked"),
        ({"virtualenv", "conda", "beside"}, "virtualenv"),
        ({"conda", "beside"}, "conda"),
        ({"beside"}, "beside"),
        (set(), None),
    ],
)
def test_the_interpreter_is_chosen_as_in_the_table(tmp_path: Path, there: set[str], chosen: str | None) -> None:
    places = {name: tmp_path / name / "bin" / "python" for name in ("asked", "virtualenv", "conda")}
    places["beside"] = tmp_path / ".venv" / "bin" / "python"
    for name in there:
        make_program(places[name])
    spec = job(python=str(places["asked"])) if "asked" in there else job()
    env = {"VIRTUAL_ENV": str(tmp_path / "virtualenv"), "CONDA_PREFIX": str(tmp_path / "conda")}
    assert choose_python(spec, env, tmp_path) == (str(places[chosen]) if chosen else "python3")


def test_muster_s_interpreter_is_never_the_default(tmp_path: Path) -> None:
    assert choose_python(job(), {}, tmp_path) == "python3"


def test_a_name_without_a_slash_is_looked_up_on_the_node(tmp_path: Path) -> None:
    assert choose_python(job(python="python3.12"), {}, tmp_path) == "python3.12"


def test_a_relative_path_starts_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path / "env" / "python")
    monkeypatch.setenv("HOME", str(tmp_path))
    for written in ("env/python", "./env/python", "~/env/python", str(tmp_path / "env" / "python")):
        assert choose_python(job(python=written), {}, tmp_path) == str(tmp_path / "env" / "python")


@pytest.mark.parametrize("written", ["env/python", "/no/such/python"])
def test_a_path_without_interpreter_is_refused_as_written(tmp_path: Path, written: str) -> None:
    with pytest.raises(BackendError, match=f"--python {written}: no such interpreter"):
        choose_python(job(python=written), {}, tmp_path)


def test_an_empty_variable_is_not_an_active_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path / "bin" / "python")
    monkeypatch.chdir(tmp_path)
    assert choose_python(job(), {"VIRTUAL_ENV": "", "CONDA_PREFIX": ""}, tmp_path) == "python3"


def test_in_a_container_the_interpreter_is_the_image_s(tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    inside = JobSpec(command=["true"], container_image="x.sif")
    assert choose_python(inside, {"VIRTUAL_ENV": str(tmp_path / ".venv")}, tmp_path) == "python3"
    named = inside.model_copy(update={"python": "/opt/only-inside/bin/python"})
    assert choose_python(named, {}, tmp_path) == "/opt/only-inside/bin/python"
