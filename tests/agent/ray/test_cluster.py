"""Options of the nodes of a Ray cluster, and the environment of its driver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.agent.job import Identity, Job
from muster.agent.ray.cluster import RayCluster
from muster.rundir import RunPaths
from muster.rundir.node_groups import NodeGroup

RUN = RunPaths("/lustre/muster-runs/train-20260101T000000-ab12")
IDENTITY = Identity(node_index=0, host="n17", run=RUN, attempt=RUN.attempt(0), local=False)
UNSET = dict.fromkeys(Job.__dataclass_fields__)
GIVEN = {
    "command": ["true"],
    "workdir": "/",
    "nodes": 4,
    "ray": True,
    "dashboard": True,
    "large_from": 64,
    "groups": [],
    "ray_start_arg": ["--verbose"],
    "ray_resource": {"disk": 1},
    "ray_label": {"site": "x"},
    "ray_unset": ["SLURM_*"],
}
JOB = Job(**{**UNSET, **GIVEN})


def cluster(job: Job = JOB, identity: Identity = IDENTITY) -> RayCluster:
    made = RayCluster(identity, job)
    made.address, made.dashboard = "10.0.0.17:20000", 20001
    return made


def test_the_dashboard_s_line_is_an_ssh_tunnel_from_the_user_s_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_SUBMIT_HOST", "login2")
    line = cluster().dashboard_line()
    assert line is not None
    assert "ssh -N -J login2 -L 8265:127.0.0.1:20001 n17 " in line and "http://localhost:8265" in line
    assert RayCluster(IDENTITY, JOB).dashboard_line() is None


def test_on_this_machine_the_dashboard_needs_no_tunnel() -> None:
    local = cluster(identity=replace(IDENTITY, local=True))
    assert local.dashboard_line() == "dashboard: http://127.0.0.1:20001"


def test_a_driver_always_finds_its_own_cluster_whatever_the_shell_said() -> None:
    env = cluster().environment({"RAY_ADDRESS": "another-cluster:6379", "RAY_AUTH_TOKEN": "x"})
    assert env["RAY_ADDRESS"] == "10.0.0.17:20000"
    assert env["RAY_AUTH_TOKEN_PATH"] == RUN.ray_token and "RAY_AUTH_TOKEN" not in env


def test_the_driver_s_threads_are_its_node_s_cpus_unless_the_user_says_otherwise() -> None:
    job = replace(JOB, cpus_per_node=6)
    assert cluster(job).environment({})["OMP_NUM_THREADS"] == "6"
    assert cluster(job).environment({"OMP_NUM_THREADS": "1"})["OMP_NUM_THREADS"] == "1"


def test_a_node_gets_what_its_group_has() -> None:
    groups = [NodeGroup("trainers", 1, cpus_per_node=64, gres="gpu:h100:8"), NodeGroup("workers", 3, cpus_per_node=16)]
    of = cluster(replace(JOB, groups=groups, gpus_per_node=2))
    first, last = of.options(0), of.options(3)
    assert first is not None and last is not None
    assert (first.cpus, first.gpus, first.group) == (64, 8, "trainers")
    assert (last.cpus, last.gpus, last.group) == (16, None, "workers")
    assert of.environment({})["MUSTER_GROUP"] == "trainers"


def test_a_node_has_the_job_s_start_arguments_and_its_group_s_resources_and_labels() -> None:
    groups = [NodeGroup("trainers", 1, ray_resource={"disk": 2}, ray_label={"site": "y"}), NodeGroup("workers", 3)]
    plain, first, last = cluster().options(0), *(cluster(replace(JOB, groups=groups)).options(at) for at in (0, 3))
    assert plain is not None and first is not None and last is not None
    assert (plain.start_args, plain.unset) == (("--verbose",), ("SLURM_*",))
    assert (plain.resources, first.resources, last.resources) == ({"disk": 1}, {"disk": 2}, {})
    assert (plain.labels, first.labels, last.labels) == ({"site": "x"}, {"site": "y"}, {})


@pytest.mark.parametrize(
    ("given", "dedicated", "cpus"),
    [((True, False), True, False), ((False, True), True, True), ((True, True), True, True)],
)
def test_a_head_that_keeps_its_cpus_is_a_dedicated_head(given: tuple[bool, bool], dedicated: bool, cpus: bool) -> None:
    options = cluster(replace(JOB, dedicated_head=given[0], dedicated_head_cpus=given[1])).options(0)
    assert options is not None
    assert (options.dedicated_head, options.head_cpus) == (dedicated, cpus)


def test_the_nodes_of_a_group_without_ray_do_not_belong_to_the_cluster() -> None:
    job = replace(JOB, groups=[NodeGroup("trainers", 3), NodeGroup("engines", 1, ray=False)])
    assert cluster(job).options(3) is None
    options = cluster(job).options(0)
    assert options is not None and options.nodes == 3
    env = cluster(job, replace(IDENTITY, node_index=3)).environment({})
    assert env["MUSTER_GROUP"] == "engines" and "RAY_ADDRESS" not in env


def test_a_run_without_ray_has_no_options_and_the_job_s_own_environment() -> None:
    plain = RayCluster(IDENTITY, replace(JOB, ray=False, cpus_per_node=2))
    assert plain.options(0) is None
    assert "RAY_ADDRESS" not in plain.environment({})


def test_the_status_has_the_effective_settings() -> None:
    shown = cluster(replace(JOB, nodes=64)).status({"RAY_health_check_timeout_ms": "7"})
    assert shown["dashboard"] == {"host": "n17", "port": 20001}
    assert shown["tuning"]["RAY_health_check_timeout_ms"] == "7"


def test_the_status_counts_the_restarts_of_the_control_service() -> None:
    of = cluster()
    assert of.status({})["gcs_restarts"] == 0
    of.gcs_restarts = 2
    assert of.status({})["gcs_restarts"] == 2


def test_every_node_knows_whether_the_control_service_is_restarted() -> None:
    found = [cluster(replace(JOB, gcs_recovery=wanted)).options(0) for wanted in (True, False)]
    assert [options.gcs_recovery for options in found if options is not None] == [True, False]
