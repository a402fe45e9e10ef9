"""The handler as torchrun uses it, and the launcher's options and exit codes. Needs torch, starts nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.torch.conftest import free_port, needs_torch

from muster.lifecycle.events import RunOutcome
from muster.torch.elastic_types import ElasticPlan
from muster.torch.launch_env import LaunchEnvironment
from muster.torch.settings import RendezvousSettings

pytestmark = needs_torch

STEP = LaunchEnvironment("n3", number=2, hosts=("n1", "n2", "n3"), nodes=3, endpoint="n1:24711", run_id="4711.0")
NOWHERE = LaunchEnvironment("here")


def handler(**plan: Any) -> Any:
    from muster.torch.handler import MusterRendezvous

    settings = RendezvousSettings(
        "127.0.0.1",
        free_port(),
        "run",
        ElasticPlan(**{"least": 1, "most": 1, **plan}),
        b"secret",
        "n1",
        0,
        is_host=True,
        read_timeout=20.0,
    )
    return MusterRendezvous(settings)


def child_failure(exit_code: int) -> Any:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    return ChildFailedError("train.py", {5: ProcessFailure(0, 1234, exit_code, "/no/such/file")})


def parsed(*words: str, place: LaunchEnvironment = STEP, **environ: str) -> Any:
    from muster.torch.launcher import parse

    return parse([*words, "train.py", "--lr", "1"], place, environ)


# -- the handler ------------------------------------------------------------------------------------------------


def test_a_round_has_a_store_of_its_own_that_workers_can_use() -> None:
    from torch.distributed import TCPStore

    rendezvous = handler()
    first = rendezvous.next_rendezvous()
    assert (first.rank, first.world_size, rendezvous.num_nodes_waiting()) == (0, 1, 0)
    first.store.set("key", "of round 1")
    where = first.bootstrap_store_info
    TCPStore(where.master_addr, where.master_port, wait_for_workers=False).set("default_pg", "of workers")
    second = rendezvous.next_rendezvous()
    assert not second.store.check(["key"]) and second.bootstrap_store_info.master_port != where.master_port
    assert rendezvous.shutdown() and rendezvous.outcome.exit_code == 0 and rendezvous.is_closed()


def test_shutdown_reports_the_exception_with_which_torchrun_is_left() -> None:
    rendezvous = handler()
    rendezvous.next_rendezvous()
    with pytest.raises(Exception, match="FAILED"):
        try:
            raise child_failure(-9)
        finally:
            assert rendezvous.shutdown()
    assert (rendezvous.outcome.exit_code, rendezvous.outcome.end_reason) == (
        137,
        "n1: the worker of rank 5 was ended by SIGKILL",
    )


def test_shutdown_raises_nothing_whatever_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    rendezvous = handler()
    assert rendezvous.shutdown() and rendezvous.shutdown()  # before anything, and again
    broken = handler()
    monkeypatch.setattr(broken._session, "leave", lambda code, reason: 1 / 0)
    assert broken.shutdown() is False
    broken.set_closed()


def test_a_node_that_comes_when_the_job_has_succeeded_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    from muster.torch.session import JobOver

    def over(outcome: RunOutcome) -> Any:
        def join(reach_store: Any) -> None:
            raise JobOver(outcome)

        return join

    rendezvous = handler()
    monkeypatch.setattr(rendezvous._session, "join", over(RunOutcome("succeeded", 0, "all workers succeeded")))
    with pytest.raises(SystemExit) as caught:
        rendezvous.next_rendezvous()
    assert caught.value.code == 0
    monkeypatch.setattr(rendezvous._session, "join", over(RunOutcome("failed", 3, "n2: the worker failed")))
    with pytest.raises(Exception, match="n2: the worker failed"):
        rendezvous.next_rendezvous()
    rendezvous.shutdown()


# -- the launcher -----------------------------------------------------------------------------------------------


def test_in_a_step_nothing_has_to_be_said() -> None:
    args = parsed("--spares", "1", "--nproc-per-node", "2")
    assert (args.nnodes, args.rdzv_endpoint, args.rdzv_id) == ("2", "n1:24711", "4711.0")
    assert (args.rdzv_backend, args.max_restarts, args.nproc_per_node) == ("muster", 1, "2")
    assert (args.training_script, args.training_script_args) == ("train.py", ["--lr", "1"])


def test_what_is_said_wins_and_so_do_torchrun_s_variables() -> None:
    args = parsed("--nnodes", "1:2", "--rdzv-id", "mine", "--max-restarts", "0", PET_RDZV_ENDPOINT="n9:1")
    assert (args.nnodes, args.rdzv_id, args.max_restarts) == ("1:2", "mine", 0)


def test_on_one_machine_without_a_step_one_node_needs_no_endpoint_and_two_do() -> None:
    assert parsed(place=NOWHERE).rdzv_endpoint == "localhost:0"
    with pytest.raises(ValueError, match="--rdzv-endpoint HOST:PORT is needed"):
        parsed("--nnodes", "2", place=NOWHERE)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--spares", "3"), "--spares 3: no node is left of 3"),
        (("--nnodes", "two"), "--nnodes two: must be N or MIN:MAX"),
        (("--rdzv-backend", "c10d"), "use torchrun for another"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parsed(*words)


def test_our_options_reach_the_rendezvous_as_its_conf() -> None:
    from muster.torch.launcher import configured

    config, _, arguments = configured(parsed("--spares", "1", "--node-rank", "4", "--last-call", "2"))
    assert {name: config.rdzv_configs[name] for name in ("spares", "node", "last_call")} == {
        "spares": 1,
        "node": 4,
        "last_call": 2.0,
    }
    assert arguments == ["-u", "train.py", "--lr", "1"]


def test_the_exit_code_is_the_job_s_and_never_a_success_that_nobody_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    from muster.torch.launcher import exit_code

    assert exit_code(RunOutcome("succeeded", 0, ""), None) == 0
    assert exit_code(RunOutcome("failed", 3, "n1: the worker of rank 0 exited with 3"), None) == 3
    assert exit_code(None, None) == 125
    assert exit_code(None, child_failure(4)) == 4
    assert exit_code(None, RuntimeError("no coordinator")) == 125
    assert "the coordinator went before it said how the job ended" in caplog.text and "no coordinator" in caplog.text
