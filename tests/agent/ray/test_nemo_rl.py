"""Variables that NeMo-RL's driver reads."""

from __future__ import annotations

from muster.agent.ray.nemo_rl import affinity_variable, driver_variables


def test_times_are_seconds_with_a_fraction_as_far_as_they_are_known() -> None:
    found = driver_variables({"job_start": 1700000000.1234, "ray_ready": 1700000042.0, "ended": 1.0}, None)
    assert found == {"NRL_JOB_START_EPOCH": "1700000000.123", "NRL_RAY_READY_EPOCH": "1700000042.000"}
    assert driver_variables({"job_start": None}, None) == {}


def test_the_master_node_is_the_head_of_a_slurm_job() -> None:
    assert driver_variables({}, "n1") == {"SLURM_MASTER_NODE": "n1"}


def test_the_affinity_file_is_named_if_there_is_one() -> None:
    assert affinity_variable("/tmp/x") == {"NRL_GPU_CPU_AFFINITY_FILE": "/tmp/x"}
    assert affinity_variable(None) == {}
