"""The settings of the rendezvous from torchrun's options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.torch.launch_env import LaunchEnvironment
from muster.torch.settings import RendezvousSettings, connection_token, parse_settings


def settings(nodes: tuple[int, int] = (2, 2), **conf: Any) -> RendezvousSettings:
    return parse_settings("n1:29400", "run", nodes, conf, LaunchEnvironment("n1", node_index=3))


def test_conf_values_are_strings_and_torchrun_adds_its_timeout() -> None:
    config = settings(spares="1", last_call="0.5", timeout=900).config
    assert (config.min_nodes, config.max_nodes, config.spares) == (2, 2, 1)
    assert (config.last_call, config.gather_timeout) == (0.5, 900.0)


def test_a_job_that_may_start_with_fewer_nodes_waits_longer_for_all_of_them() -> None:
    assert settings().config.last_call == 5.0 and settings((1, 4)).config.last_call == 30.0


def test_the_node_index_may_be_given_and_is_otherwise_slurm_s() -> None:
    assert settings(node="7").node_index == 7 and settings().node_index == 3


def test_failover_needs_a_directory_and_every_job_has_its_own_below_it(tmp_path: Path) -> None:
    assert settings(spares="1").job_directory is None and not settings(spares="1").config.failover
    found = settings(spares="1", failover_dir=str(tmp_path))
    assert found.config.failover and found.job_directory == str(tmp_path / "torchrun-run")


@pytest.mark.parametrize(
    ("nodes", "conf", "message"),
    [
        ((2, 2), {}, "needs 3 nodes with the spares: one of two is no majority"),
        ((1, 4), {}, "--nnodes must be at least half of the 4 nodes"),
        ((1, 1), {"spares": "2"}, "--nnodes must be at least half of the 3 nodes"),
    ],
)
def test_failover_without_a_possible_majority_is_refused(
    nodes: tuple[int, int], conf: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        settings(nodes, failover_dir="/shared", **conf)


def test_failover_without_a_node_number_is_refused() -> None:
    conf = {"failover_dir": "/shared", "spares": "1"}
    with pytest.raises(ValueError, match="every node needs its number"):
        parse_settings("n1:29400", "run", (2, 2), conf, LaunchEnvironment("n1"))


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"spare": "1"}, "spare: unknown option; valid are spares"),
        ({"spares": "many"}, "spares=many: must be a number"),
        ({"spares": "0.5"}, "spares=0.5"),
        ({"last_call": "-1"}, "last_call=-1"),
        ({"is_host": "perhaps"}, "is_host=perhaps"),
    ],
)
def test_invalid_options_are_refused_by_their_names(conf: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**conf)


def test_the_token_comes_from_the_conf_the_file_the_variable_or_the_run_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of the file\n")
    conf = {"token_file": str(tmp_path / "token")}
    assert connection_token("run", {}) != connection_token("other", {})
    monkeypatch.setenv("MUSTER_TORCH_TOKEN", "of the variable")
    assert connection_token("run", {}) == b"of the variable"
    assert connection_token("run", conf) == b"of the file"
    assert connection_token("run", {**conf, "token": "given"}) == b"given"


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    with pytest.raises(ValueError, match="empty"):
        connection_token("run", {"token_file": str(tmp_path / "token")})
