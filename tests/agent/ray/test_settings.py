"""Directory, arguments and environment of a Ray node."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.ray import settings
from muster.agent.ray.labels import NodeFacts
from muster.agent.ray.resources import ResourceShare
from muster.agent.ray.settings import LONGEST_TEMP_DIR, RayOptions
from muster.ports.blocks import PortBlock

OPTIONS = RayOptions(cpus=None, gpus=None, dashboard=False, nodes=4, local=False)
SHARE = ResourceShare(cpus=8, gpus=None, store=1 << 30, memory=None)
BLOCK = PortBlock(23000, 1000)
LONGEST_OF_RAY = "/session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"
SOCKET_PATH_LIMIT = 107


def flags(arguments: list[str]) -> dict[str, str]:
    """Arguments by name; those without a value are empty."""
    return {name: value for name, _, value in (argument.partition("=") for argument in arguments)}


def common(rank: int = 1, share: ResourceShare = SHARE, options: RayOptions = OPTIONS) -> dict[str, str]:
    facts = NodeFacts(rank, f"n{rank}", nvlink_domain="a1b2-c3")
    return flags(settings.start_arguments(options, facts, share, "10.0.0.1", "/tmp/muster-x/0.0.1"))


# -- the temporary directory ------------------------------------------------------------------------------------


@given(
    run_id=st.text(min_size=1, max_size=200),
    attempt=st.integers(0, 999),
    cycle=st.integers(0, 99),
    rank=st.integers(0, 99_999),
)
def test_ray_s_sockets_fit_whatever_the_run_is_called(run_id: str, attempt: int, cycle: int, rank: int) -> None:
    path = settings.temp_dir(run_id, attempt, cycle, rank)
    assert len(path) <= LONGEST_TEMP_DIR
    assert len(path + LONGEST_OF_RAY) <= SOCKET_PATH_LIMIT


def test_the_directory_is_another_for_every_run_attempt_cycle_and_rank() -> None:
    places = [
        ("a", 0, 0, 0),
        ("b", 0, 0, 0),
        ("a", 1, 0, 0),
        ("a", 0, 1, 0),
        ("a", 0, 0, 1),
        ("a", 1, 1, 1),
        ("a", 11, 1, 1),
    ]
    assert len({settings.temp_dir(*place) for place in places}) == len(places)
    assert settings.temp_dir("a", 0, 0, 0) == settings.temp_dir("a", 0, 0, 0)


def test_a_root_that_makes_it_too_long_is_refused_with_the_limit() -> None:
    with pytest.raises(ValueError, match=f"too long .*{LONGEST_TEMP_DIR}"):
        settings.temp_dir("a", 0, 0, 0, root="/scratch/users/alice/some/deep/place")


# -- arguments --------------------------------------------------------------------------------------------------


def test_every_node_says_its_address_directory_cpus_and_rank() -> None:
    arguments = common(rank=3)
    assert arguments["--node-ip-address"] == "10.0.0.1"
    assert arguments["--temp-dir"] == "/tmp/muster-x/0.0.1"
    assert arguments["--num-cpus"] == "8"
    assert "muster.io/rank=3" in arguments["--labels"].split(",")


@pytest.mark.parametrize(("rank", "role"), [(0, "head"), (1, "worker"), (63, "worker")])
def test_the_role_label_follows_the_rank(rank: int, role: str) -> None:
    assert f"muster.io/role={role}" in common(rank=rank)["--labels"].split(",")


def test_only_the_head_is_told_to_be_one() -> None:
    assert not {"--head", "--port", "--address"} & common().keys()
    head = flags(settings.head_arguments(OPTIONS, BLOCK))
    assert head == {"--head": "", "--port": "23000", "--include-dashboard": "false"}


def test_the_dashboard_when_wanted_listens_on_loopback_on_a_port_of_its_own() -> None:
    head = flags(settings.head_arguments(replace(OPTIONS, dashboard=True), BLOCK))
    assert (head["--include-dashboard"], head["--dashboard-host"]) == ("true", "127.0.0.1")
    assert int(head["--dashboard-port"]) in BLOCK.ports()


@pytest.mark.parametrize(("gpus", "said"), [(None, None), (0, "0"), (8, "8")])
def test_gpus_are_told_only_when_the_job_said_how_many(gpus: int | None, said: str | None) -> None:
    assert common(share=replace(SHARE, gpus=gpus)).get("--num-gpus") == said


def test_memory_is_told_only_where_the_step_has_less_than_the_machine() -> None:
    assert common()["--object-store-memory"] == str(1 << 30)
    assert "--memory" not in common()
    assert common(share=replace(SHARE, memory=5 << 30))["--memory"] == str(5 << 30)


def test_a_dedicated_head_has_nothing_that_a_task_could_ask_for() -> None:
    options = replace(OPTIONS, dedicated_head=True)
    head, worker = (common(rank, replace(SHARE, gpus=4), options) for rank in (0, 1))
    assert (head["--num-cpus"], head["--num-gpus"]) == ("0", "0")
    assert (worker["--num-cpus"], worker["--num-gpus"]) == ("8", "4")
    assert json.loads(head["--resources"]) == {"slurm_managed_ray_cluster": 1, "ray_head": 1}
    assert "ray.io/gpu-domain" not in head["--labels"] and "ray.io/gpu-domain=a1b2-c3" in worker["--labels"]


def test_a_dedicated_head_may_keep_its_cpus() -> None:
    head = common(0, replace(SHARE, gpus=4), replace(OPTIONS, dedicated_head=True, head_cpus=True))
    assert (head["--num-cpus"], head["--num-gpus"]) == ("8", "0")
    assert json.loads(head["--resources"]) == {"slurm_managed_ray_cluster": 1, "ray_head": 1}


def test_the_job_s_resources_labels_and_arguments_are_added_and_its_gpu_domain_wins() -> None:
    labels = {"ray.io/gpu-domain": "rack-1", "site": "x"}
    arguments = common(
        options=replace(OPTIONS, resources={"disk": 2}, labels=labels, start_args=("--verbose", "--node-name=a=b"))
    )
    assert json.loads(arguments["--resources"])["disk"] == 2
    given = arguments["--labels"].split(",")
    assert {"ray.io/gpu-domain=rack-1", "site=x", "muster.io/rank=1"} <= set(given)
    assert len([label for label in given if label.startswith("ray.io/gpu-domain")]) == 1
    assert (arguments["--verbose"], arguments["--node-name"]) == ("", "a=b")


# -- the environment --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base", [{}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN_PATH": "/home/alice/.ray/auth_token"}]
)
def test_token_authentication_is_always_explicit(base: dict[str, str]) -> None:
    env = settings.environment(base, "/runs/r/token", {})
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", "/runs/r/token")


def test_a_token_of_the_submitting_shell_does_not_take_the_place_of_the_run_s() -> None:
    assert "RAY_AUTH_TOKEN" not in settings.environment({"RAY_AUTH_TOKEN": "another cluster's"}, "/runs/r/token", {})


def test_ray_s_own_subreaper_is_off_and_nothing_is_sent_home() -> None:
    name = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"
    env = settings.environment({name: "true", "RAY_USAGE_STATS_ENABLED": "1"}, "/runs/r/token", {})
    assert (env[name], env["RAY_USAGE_STATS_ENABLED"]) == ("false", "0")


def test_variables_are_removed_by_name_and_by_their_beginning() -> None:
    base = {"SLURM_JOB_ID": "7", "SLURM": "1", "MPI_HOME": "/mpi", "OMPI_MCA_btl": "tcp", "PATH": "/bin"}
    assert settings.without_variables(base, ["SLURM_*", "OMPI_*", "MPI_HOME"]) == {"SLURM": "1", "PATH": "/bin"}
    assert settings.without_variables(base, []) == base


def test_everything_else_stays() -> None:
    assert settings.environment({"LANG": "C"}, "/runs/r/token", {})["LANG"] == "C"


def test_what_the_user_sets_wins_over_muster_s_tuning() -> None:
    tuning = {"RAY_a": "1", "RAY_b": "2"}
    env = settings.environment({"RAY_b": "mine"}, "/runs/r/token", tuning)
    assert (env["RAY_a"], env["RAY_b"]) == ("1", "mine")
