"""The launcher's options and exit codes. Needs torch, starts no process."""

from __future__ import annotations

from typing import Any

import pytest
from tests.torch.conftest import child_failure, needs_torch

from muster.lifecycle.events import RunOutcome
from muster.torch.launch_env import LaunchEnvironment

pytestmark = needs_torch

STEP = LaunchEnvironment("n3", node_index=2, hosts=("n1", "n2", "n3"), nodes=3, endpoint="n1:24711", run_id="4711.0")
NO_STEP = LaunchEnvironment("here")


def parsed(*words: str, environment: LaunchEnvironment = STEP, **environ: str) -> Any:
    from muster.torch.launcher import parse_options

    return parse_options([*words, "train.py", "--lr", "1"], environment, environ)


def test_in_a_step_all_options_have_defaults() -> None:
    args = parsed("--spares", "1", "--nproc-per-node", "2")
    assert (args.nnodes, args.rdzv_endpoint, args.rdzv_id) == ("2", "n1:24711", "4711.0")
    assert (args.rdzv_backend, args.max_restarts, args.nproc_per_node) == ("muster", 1, "2")
    assert (args.training_script, args.training_script_args) == ("train.py", ["--lr", "1"])


def test_options_and_torchrun_s_variables_have_priority() -> None:
    args = parsed("--nnodes", "1:2", "--rdzv-id", "mine", "--max-restarts", "0", PET_RDZV_ENDPOINT="n9:1")
    assert (args.nnodes, args.rdzv_id, args.max_restarts) == ("1:2", "mine", 0)


def test_on_one_machine_without_a_step_one_node_needs_no_endpoint_and_two_do() -> None:
    assert parsed(environment=NO_STEP).rdzv_endpoint == "localhost:0"
    with pytest.raises(ValueError, match="--rdzv-endpoint HOST:PORT is required"):
        parsed("--nnodes", "2", environment=NO_STEP)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--spares", "3"), "--spares 3: no node is left of 3"),
        (("--nnodes", "two"), "--nnodes two: must be N or MIN:MAX"),
        (("--rdzv-backend", "c10d"), "use torchrun for others"),
    ],
)
def test_invalid_options_are_refused_by_their_names(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed(*words)


def test_our_options_reach_the_rendezvous_as_its_conf() -> None:
    from muster.torch.launcher import torchrun_config

    config, _, arguments = torchrun_config(parsed("--spares", "1", "--node-rank", "4", "--last-call", "2"))
    assert {name: config.rdzv_configs[name] for name in ("spares", "node", "last_call")} == {
        "spares": 1,
        "node": 4,
        "last_call": 2.0,
    }
    assert arguments == ["-u", "train.py", "--lr", "1"]


def test_failover_is_off_unless_its_directory_is_given() -> None:
    from muster.torch.launcher import torchrun_config

    config, _, _ = torchrun_config(parsed("--spares", "1"))
    assert "failover_dir" not in config.rdzv_configs
    config, _, _ = torchrun_config(parsed("--spares", "1", "--failover-dir", "/shared"))
    assert config.rdzv_configs["failover_dir"] == "/shared"


def test_the_exit_code_is_the_job_s_and_never_an_unconfirmed_success(caplog: pytest.LogCaptureFixture) -> None:
    from muster.torch.launcher import exit_code

    assert exit_code(RunOutcome("succeeded", 0, ""), None) == 0
    assert exit_code(RunOutcome("failed", 3, "n1: the worker of rank 0 exited with 3"), None) == 3
    assert exit_code(None, None) == 125
    assert exit_code(None, child_failure(4)) == 4
    assert exit_code(None, RuntimeError("no coordinator")) == 125
    output = caplog.text
    assert "the coordinator disconnected before it sent the outcome" in output and "no coordinator" in output
