"""Planning a run: everything about it is decided, and nothing is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from muster.errors import BackendError, Mistake
from muster.launch.plan import Prepared, array_runs, new_run_id, plan_run, runs_dir, script_options, task_job_id
from muster.launch.target import Target
from muster.spec import JobSpec


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], "name": "train", **fields})


def planned(directory: Path, kind: str = "sbatch", nodes: int = 2, **fields: Any) -> Prepared:
    fields = {"nodes": nodes, **fields} if "min_nodes" in fields else fields
    return plan_run(job(**fields), Target(kind, nodes), directory)


def test_the_runs_directory_is_the_option_s_then_the_variable_s_then_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MUSTER_RUNS_DIR", raising=False)
    assert runs_dir(job(), tmp_path) == tmp_path / "muster-runs"
    monkeypatch.setenv("MUSTER_RUNS_DIR", "/shared/runs")
    assert runs_dir(job(), tmp_path) == Path("/shared/runs")
    assert runs_dir(job(runs_dir="mine"), tmp_path) == tmp_path / "mine"
    monkeypatch.setenv("HOME", "/home/ann")
    assert runs_dir(job(runs_dir="~/mine"), tmp_path) == Path("/home/ann/mine")


@pytest.mark.parametrize(
    ("name", "slug"),
    [("train", "train"), ("my job/1", "my-job-1"), ("..hidden-", "hidden"), ("\u00fc", "run"), ("", "run")],
)
def test_a_run_id_has_the_name_the_time_and_a_random_part(name: str, slug: str) -> None:
    assert re.fullmatch(re.escape(slug) + r"-\d{8}T\d{6}-[0-9a-f]{4}", new_run_id(name))


def test_nothing_is_written(tmp_path: Path) -> None:
    prepared = planned(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert prepared.run.root.startswith(f"{tmp_path}/muster-runs/train-") and prepared.run.root in prepared.script


def test_spares_have_agents_too(tmp_path: Path) -> None:
    prepared = planned(tmp_path, nodes=3, spares=2)
    assert (prepared.spec.nodes, prepared.step_nodes) == (3, 5)
    assert "--nodes=5" in prepared.script


def test_a_job_that_can_do_without_a_node_leaves_the_end_of_a_task_to_its_leader(tmp_path: Path) -> None:
    assert "elif false; then why=" in planned(tmp_path, nodes=4, min_nodes=3).script
    assert "elif false; then why=" not in planned(tmp_path, nodes=4).script


def test_a_dedicated_head_needs_another_node_in_the_smallest_cycle(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="one node is not enough"):
        planned(tmp_path, nodes=4, min_nodes=1, dedicated_head=True)


def test_a_directory_with_a_line_break_in_its_name_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / "a\ntouch pwned #"
    odd.mkdir()
    with pytest.raises(BackendError, match="control character"):
        plan_run(job(), Target("sbatch", 1), odd)


@pytest.mark.parametrize(
    ("fields", "nodes", "error"),
    [
        ({"workdir": "missing"}, 2, "--workdir missing: no such directory"),
        ({"dedicated_head": True}, 1, "--dedicated-head: one node is not enough"),
        ({"dedicated_head_cpus": True}, 1, "--dedicated-head-cpus: one node is not enough"),
        ({"segment": 2}, 3, "segment"),
        ({"requeue_on": ["timeout"], "sbatch": {"no-requeue": None}}, 2, "exclude each other"),
        ({"setup": "export HF_TOKEN=abcdef"}, 2, "looks like a secret"),
    ],
)
def test_a_job_that_cannot_run_on_its_target_is_refused(
    tmp_path: Path, fields: dict[str, Any], nodes: int, error: str
) -> None:
    with pytest.raises(Mistake, match=error):
        planned(tmp_path, nodes=nodes, **fields)


def test_only_a_submitted_job_records_its_slurm_job_and_counts_its_attempts(tmp_path: Path) -> None:
    submitted, inside, local = (planned(tmp_path, kind).script for kind in ("sbatch", "allocation", "local"))
    assert "slurm-job.json" in submitted and "slurm-job.json" not in inside + local
    assert "#SBATCH" in submitted and "#SBATCH" not in inside + local
    assert "node-0 node-1" in local and "setsid srun" not in local


def test_srun_options_of_a_container_are_those_of_every_group(tmp_path: Path) -> None:
    groups = [{"name": "big", "nodes": 1, "cpus_per_node": 2}, {"name": "small", "nodes": 2, "cpus_per_node": 1}]
    prepared = planned(
        tmp_path, nodes=3, groups=groups, container_image="ubuntu", container_runtime="pyxis", workdir="/usr"
    )
    (step,) = [line for line in prepared.script.splitlines() if line.startswith("setsid srun")]
    first, second = step.split(" : ")
    assert first.count("--container-image=") == second.count("--container-image=") == 1


def test_a_pull_on_many_nodes_is_warned_about(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"container_image": "ubuntu", "container_runtime": "pyxis", "workdir": "/usr"}
    (warning,) = planned(tmp_path, nodes=60, spares=4, **fields).warnings
    assert "64 nodes" in warning
    assert planned(tmp_path, nodes=2, **fields).warnings == planned(tmp_path).warnings == []


def test_the_options_of_a_script_are_those_of_all_its_groups(tmp_path: Path) -> None:
    assert {"job-name", "nodes", "partition"} <= script_options(planned(tmp_path, partition="gpu"))
    groups = [{"name": "a", "nodes": 1}, {"name": "b", "nodes": 1, "gres": "gpu:1"}]
    assert "gres" in script_options(planned(tmp_path, groups=groups))


def test_an_array_has_one_run_per_task_with_slurm_s_id_for_it(tmp_path: Path) -> None:
    prepared = planned(tmp_path, array="0-6:3%1")
    runs = array_runs(prepared)
    assert [run.run.root.removeprefix(prepared.run.root) for run in runs] == ["-0", "-3", "-6"]
    assert [task_job_id(run, "17") for run in runs] == ["17_0", "17_3", "17_6"]
    single = planned(tmp_path)
    assert array_runs(single) == [single] and task_job_id(single, "17") == "17"
