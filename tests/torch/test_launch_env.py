"""The launch environment from the variables of a Slurm step or a gang."""

from __future__ import annotations

from muster.torch.launch_env import LaunchEnvironment, launch_environment

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[07-10]",
    "SLURMD_NODENAME": "gpu09",
}
GANG = {
    "MUSTER_RUN_ID": "train-1",
    "MUSTER_ATTEMPT": "0",
    "MUSTER_CYCLE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "3",
    "MASTER_ADDR": "fd00::1",
    "MASTER_PORT": "21000",
    "SLURMD_NODENAME": "gpu08",
}


def test_a_slurm_step_gives_the_nodes_and_the_endpoint() -> None:
    environment = launch_environment(STEP)
    assert environment.hosts == ("gpu07", "gpu08", "gpu09", "gpu10")
    assert (environment.host, environment.node_index, environment.nodes) == ("gpu09", 2, 4)
    assert (environment.endpoint, environment.run_id) == ("gpu07:24711", "4711.0")


def test_another_step_of_the_same_job_has_another_endpoint() -> None:
    assert launch_environment({**STEP, "SLURM_STEP_ID": "1"}).endpoint != launch_environment(STEP).endpoint


def test_a_requeued_job_has_another_run_id() -> None:
    assert launch_environment({**STEP, "SLURM_RESTART_COUNT": "0"}).run_id == "4711.0"
    assert launch_environment({**STEP, "SLURM_RESTART_COUNT": "2"}).run_id == "4711.0.2"


def test_a_batch_script_is_no_step_though_it_has_a_slurm_procid() -> None:
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    assert launch_environment(batch) == LaunchEnvironment("gpu09")


def test_a_gang_of_muster_gives_the_same_by_its_variables() -> None:
    assert launch_environment({**STEP, **GANG}) == LaunchEnvironment(
        "gpu08", node_index=1, nodes=3, endpoint="[fd00::1]:21000", run_id="train-1.0.2"
    )
