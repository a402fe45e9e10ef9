"""The agent's identity from its environment, the job from its file, and the state machine's view of it."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import identity

from muster.agent.job import Identity, Job, run_config, slurm_job_id
from muster.lifecycle.config import RunConfig
from muster.lifecycle.services import ServicePlan
from muster.rundir import RunPaths, write_atomic, write_json
from muster.rundir.node_groups import NodeGroup

VARIABLES = {"MUSTER_RANK": "3", "MUSTER_HOST": "n3", "MUSTER_ATTEMPT": "2"}
GROUP = {"name": "big", "nodes": 2, "cpus_per_node": 4, "gpus_per_node": None, "gres": None}
RECORD: dict[str, Any] = {
    **dict.fromkeys(Job.__dataclass_fields__),
    "command": ["python", "train.py"],
    "nodes": 2,
    "min_nodes": 1,
    "procs_per_node": 4,
    "spares": 1,
    "ray": False,
    "gather_timeout": 61.0,
    "start_timeout": 62.0,
    "stop_grace": 63.0,
    "last_call": 64.0,
    "on_node_loss": "replace",
    "max_restarts": 3,
    "restart_on_driver_failure": True,
    "no_progress_limit": 4,
    "segment": 2,
    "groups": [{**GROUP, "constraint": "ignored"}],
    "services": {"web": {"scope": "all", "gate": True, "deadline": 20.0}},
}


@pytest.fixture
def agent(tmp_path: Path) -> Identity:
    return identity(tmp_path / "run", 0)


def load(agent: Identity, **values: Any) -> Job:
    write_json(agent.run.job, {**RECORD, **values})
    return Job.load(agent.run)


@pytest.mark.parametrize(("backend", "local"), [({}, False), ({"MUSTER_BACKEND": "local"}, True)])
def test_the_identity_is_read_from_the_agent_s_variables(tmp_path: Path, backend: dict[str, str], local: bool) -> None:
    run = RunPaths(str(tmp_path))
    read = Identity.from_environment(run.root, {**VARIABLES, **backend})
    assert read == Identity(node_index=3, host="n3", run=run, attempt=run.attempt(2), local=local)


@pytest.mark.parametrize("name", VARIABLES)
def test_an_identity_is_never_guessed(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyError, match=name):
        Identity.from_environment(str(tmp_path), {key: value for key, value in VARIABLES.items() if key != name})


def test_the_job_is_read_with_its_groups_and_services_and_unknown_fields_are_ignored(agent: Identity) -> None:
    job = load(agent, a_field_for_the_command_line="ignored")
    assert job.command == ["python", "train.py"] and job.step_nodes == 3
    assert job.groups == [NodeGroup("big", 2, 4)]
    assert job.services == (ServicePlan("web", "all", True, 20.0),)


def test_a_job_without_services_needs_no_entry_for_them(agent: Identity) -> None:
    write_json(agent.run.job, {name: value for name, value in RECORD.items() if name != "services"})
    assert Job.load(agent.run).services == ()


def test_a_job_file_without_a_field_is_an_error_that_names_it(agent: Identity) -> None:
    write_json(agent.run.job, {name: value for name, value in RECORD.items() if name != "stop_grace"})
    with pytest.raises(KeyError, match="stop_grace"):
        Job.load(agent.run)


@pytest.mark.parametrize("topology", [False, True])
def test_the_run_s_configuration_has_every_value_of_the_job(agent: Identity, topology: bool) -> None:
    write_atomic(agent.attempt.hosts, "n0\nn1\nn2\n")
    groups = [GROUP, {**GROUP, "name": "small", "nodes": 1, "ray": False}]
    config = run_config(agent, load(agent, groups=groups), topology)
    assert config == RunConfig(
        hosts=["n0", "n1", "n2"],
        ray=False,
        gather_timeout=61.0,
        start_timeout=62.0,
        spares=1,
        last_call=64.0,
        on_node_loss="replace",
        max_restarts=3,
        restart_on_driver_failure=True,
        restart_grace=63.0,
        no_progress_limit=4,
        topology=topology,
        segment=2,
        min_nodes=1,
        gang=True,
        services=(ServicePlan("web", "all", True, 20.0),),
        without_ray=frozenset({2}),
    )
    default = RunConfig(["n0", "n1", "n2"])
    same = {field.name for field in fields(config) if getattr(config, field.name) == getattr(default, field.name)}
    assert same == ({"hosts"} if topology else {"hosts", "topology"})  # no other value was left at its default


@pytest.mark.parametrize(("fewest", "nodes"), [(1, 3), (None, 2)])
def test_a_job_with_a_range_of_nodes_has_those_that_slurm_has_allocated(
    agent: Identity, fewest: int | None, nodes: int
) -> None:
    write_json(agent.run.job, {**RECORD, "min_nodes": fewest})
    assert Job.load(agent.run, {"MUSTER_STEP_NODES": "4"}).nodes == nodes


def test_nodes_without_recorded_names_are_numbered(agent: Identity) -> None:
    assert not os.path.exists(agent.attempt.hosts)
    assert run_config(agent, load(agent), False).hosts == ["rank-0", "rank-1", "rank-2"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "17"}, "17"),
        ({"SLURM_JOB_ID": "19", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}, "17_2"),
    ],
)
def test_the_job_id_is_the_one_of_the_submission(env: dict[str, str], expected: str | None) -> None:
    assert slurm_job_id(env) == expected
