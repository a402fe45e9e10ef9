"""Spares: accepted and refused fields, and the Slurm options that follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import Mistake, SpecError
from muster.launch import slurm_directives
from muster.launch.target import Target, choose_target
from muster.spec import JobSpec


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"spares": 1, "groups": [{"name": "a", "nodes": 2}]}, "a job with groups cannot have spares"),
        ({"on_node_loss": "replace"}, "replace needs a spare node"),
        ({"on_node_loss": "hope"}, "fail"),
        ({"spares": -1}, "spares"),
        ({"segment": 4, "nodes": 6}, "6 nodes are not a multiple of --segment 4"),
        ({"segment": 2, "groups": [{"name": "a", "nodes": 2}]}, "follow its groups"),
    ],
)
def test_invalid_combinations_are_refused_with_the_reason(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        job(**fields)


def test_segments_are_checked_once_the_number_of_nodes_is_known(allocation: dict[str, str]) -> None:
    assert job(segment=4).segment == 4
    assert choose_target(job(segment=4), allocation).nodes == 4


def test_slurm_allocates_the_nodes_and_the_spares() -> None:
    assert slurm_directives.options(job(nodes=3, spares=2), "/run", "/work")["nodes"] == "5"


@pytest.mark.parametrize(
    ("fields", "stays"),
    [({}, False), ({"spares": 1}, True), ({"on_node_loss": "restart"}, True)],
    ids=["no-spares", "spares", "restart"],
)
def test_slurm_does_not_end_a_job_that_survives_a_lost_node(fields: dict[str, Any], stays: bool) -> None:
    assert ("no-kill" in slurm_directives.options(job(requeue_on=["node-fail"], **fields), "/run", "/work")) is stays


@pytest.fixture
def allocation(tmp_path: Any) -> dict[str, str]:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    return {"PATH": str(tmp_path), "SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "4"}


@pytest.mark.parametrize(("fields", "nodes"), [({"spares": 1}, 3), ({"spares": 1, "nodes": 2}, 2)])
def test_inside_an_allocation_the_job_uses_all_nodes_but_the_spares(
    allocation: dict[str, str], fields: dict[str, Any], nodes: int
) -> None:
    assert choose_target(job(**fields), allocation) == Target("allocation", nodes)


@pytest.mark.parametrize("fields", [{"spares": 4}, {"spares": 2, "nodes": 3}])
def test_an_allocation_too_small_for_the_spares_is_refused(allocation: dict[str, str], fields: dict[str, Any]) -> None:
    with pytest.raises(Mistake, match=r"has 4 nodes, too few for .*--spares"):
        choose_target(job(**fields), allocation)
