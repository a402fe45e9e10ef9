"""What torchrun's options and the environment make of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.torch.launch_env import LaunchEnvironment, launch_environment
from muster.torch.settings import RendezvousSettings, parse_endpoint, settings_of, token_of

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


def settings(nodes: tuple[int, int] = (2, 2), **conf: Any) -> RendezvousSettings:
    return settings_of("n1:29400", "run", nodes, conf, LaunchEnvironment("n1", number=3))


def test_a_step_of_slurm_s_says_who_takes_part_and_where_they_meet() -> None:
    place = launch_environment(STEP)
    assert place.hosts == ("gpu07", "gpu08", "gpu09", "gpu10")
    assert (place.host, place.number, place.nodes) == ("gpu09", 2, 4)
    assert (place.endpoint, place.run_id) == ("gpu07:24711", "4711.0")


def test_another_step_of_the_same_job_meets_elsewhere() -> None:
    assert launch_environment({**STEP, "SLURM_STEP_ID": "1"}).endpoint != launch_environment(STEP).endpoint


def test_a_batch_script_is_no_step_though_slurm_numbers_it() -> None:
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    assert launch_environment(batch) == LaunchEnvironment("gpu09")


def test_a_gang_of_muster_s_own_says_the_same_by_its_variables() -> None:
    assert launch_environment({**STEP, **GANG}) == LaunchEnvironment(
        "gpu08", number=1, nodes=3, endpoint="[fd00::1]:21000", run_id="train-1.0.2"
    )


def test_conf_values_are_strings_and_torchrun_adds_its_timeout() -> None:
    plan = settings(spares="1", last_call="0.5", timeout=900).plan
    assert (plan.least, plan.most, plan.spares, plan.last_call, plan.gather_timeout) == (2, 2, 1, 0.5, 900.0)


def test_a_job_that_may_start_with_fewer_nodes_waits_longer_for_all_of_them() -> None:
    assert settings().plan.last_call == 5.0 and settings((1, 4)).plan.last_call == 30.0


def test_the_number_of_the_node_may_be_given_and_is_else_slurm_s() -> None:
    assert settings(node="7").number == 7 and settings().number == 3


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ({"spare": "1"}, "spare: not known to muster, which knows spares"),
        ({"spares": "many"}, "spares=many: must be a number"),
        ({"spares": "0.5"}, "spares=0.5"),
        ({"last_call": "-1"}, "last_call=-1"),
        ({"is_host": "perhaps"}, "is_host=perhaps"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(conf: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        settings(**conf)


@pytest.mark.parametrize("endpoint", ["", "n1", "n1:port", ":29400", "n1:70000", "[fd00::1:29400"])
def test_an_endpoint_without_host_or_port_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        parse_endpoint(endpoint)


def test_the_token_is_the_given_one_else_the_file_s_else_the_variable_s_else_made_of_the_run_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of the file\n")
    conf = {"token_file": str(tmp_path / "token")}
    assert token_of("run", {}) != token_of("other", {})
    monkeypatch.setenv("MUSTER_TORCH_TOKEN", "of the variable")
    assert token_of("run", {}) == b"of the variable"
    assert token_of("run", conf) == b"of the file"
    assert token_of("run", {**conf, "token": "given"}) == b"given"


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    with pytest.raises(ValueError, match="empty"):
        token_of("run", {"token_file": str(tmp_path / "token")})
