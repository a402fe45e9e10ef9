"""Nodes that have failed in earlier runs are left out of a new job."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.fake_slurm import FakeSlurm, fake_slurm

from muster.launch.node_avoidance import BadNodesWarning, exclusion
from muster.launch.plan import Prepared, plan_run
from muster.launch.target import Target
from muster.rundir.node_evidence import Evidence
from muster.rundir.node_memory import NodeMemory
from muster.spec import JobSpec

__all__ = ["fake_slurm"]


def planned(directory: Path, **fields: Any) -> Prepared:
    """A job whose memory says that n1, and a node of another cluster, were lost."""
    memory = NodeMemory(str(directory / "memory"))
    memory.remember([Evidence(host, "lost", "gone", time.time(), "r", 0) for host in ("n1", "other7")])
    given = {"command": ["true"], "python": sys.executable, "node_memory": memory.directory, **fields}
    return plan_run(JobSpec(**given), Target("sbatch", 2), directory)


def test_remembered_nodes_are_excluded_beside_those_that_the_user_excludes(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    with pytest.warns(BadNodesWarning, match="not used: n1 "):
        assert exclusion(planned(tmp_path, exclude="n[5-6]")) == ["--exclude=n[5-6],n1"]
    (tested,) = fake_slurm.called("sbatch")
    assert tested.startswith("--test-only --exclude=n[5-6],n1 ")


def test_where_the_job_cannot_run_without_them_they_are_used_and_a_warning_says_so(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.cannot_fit("Requested node configuration is not available")
    with pytest.warns(BadNodesWarning, match="may be used: without n1 the job cannot run .*configuration"):
        assert exclusion(planned(tmp_path)) == []


@pytest.mark.parametrize("fields", [{"node_memory": None}, {"avoid_bad_nodes": False}])
def test_without_a_memory_or_if_nodes_are_not_to_be_avoided_slurm_is_not_asked(
    tmp_path: Path, fake_slurm: FakeSlurm, fields: dict[str, Any]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert exclusion(planned(tmp_path, **fields)) == []
    assert fake_slurm.calls == []


def test_a_forgiven_node_is_used_again(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    prepared = planned(tmp_path)
    NodeMemory(str(tmp_path / "memory")).forgive(["n1"])
    assert exclusion(prepared) == []
