"""Gangs: accepted and refused fields."""

from __future__ import annotations

from typing import Any

import pytest

from muster.spec import JobSpec, SpecError, load_job


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], **fields})


def test_by_default_a_job_has_one_driver() -> None:
    assert job().procs_per_node is None


@pytest.mark.parametrize("name", ["procs_per_node", "nproc_per_node"])
def test_the_job_file_accepts_torchrun_s_name(tmp_path: Any, name: str) -> None:
    (tmp_path / "job.yaml").write_text(f"command: [python, train.py]\n{name}: 8\n")
    assert load_job(tmp_path / "job.yaml", {}).procs_per_node == 8


@pytest.mark.parametrize("loss", ["fail", "restart"])
def test_a_gang_may_fail_or_restart_as_a_whole(loss: str) -> None:
    assert job(procs_per_node=2, spares=1, on_node_loss=loss).on_node_loss == loss


def test_a_gang_cannot_replace_a_node() -> None:
    with pytest.raises(SpecError, match=r"--on-node-loss: .*--procs-per-node.*choose restart"):
        load_job(None, {"command": ["true"], "procs_per_node": "2", "spares": "1", "on_node_loss": "replace"})


def test_a_gang_that_is_to_replace_nodes_is_not_advised_to_have_spares() -> None:
    with pytest.raises(SpecError) as refused:
        load_job(None, {"command": ["true"], "procs_per_node": "2", "on_node_loss": "replace"})
    assert "cannot continue without a lost node; choose restart" in str(refused.value)
    assert "--spares" not in str(refused.value)


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_a_node_has_at_least_one_process(value: object) -> None:
    with pytest.raises(SpecError, match="procs_per_node"):
        job(procs_per_node=value)


def test_nodes_of_all_groups_have_the_same_number_of_processes() -> None:
    assert job(procs_per_node=2, groups=[{"name": "a", "nodes": 1}, {"name": "b", "nodes": 2}]).nodes == 3
