"""The rendezvous handler as torchrun uses it. Needs torch, starts no process."""

from __future__ import annotations

from typing import Any

import pytest
from tests.free_port import free_port
from tests.torch.conftest import child_failure, needs_torch

from muster.lifecycle.events import RunOutcome
from muster.torch.elastic_types import ElasticConfig
from muster.torch.settings import RendezvousSettings

pytestmark = needs_torch


def handler(**plan: Any) -> Any:
    from muster.torch.handler import MusterRendezvous

    settings = RendezvousSettings(
        "127.0.0.1",
        free_port(),
        "run",
        ElasticConfig(**{"min_nodes": 1, "max_nodes": 1, **plan}),
        b"secret",
        "n1",
        0,
        is_host=True,
        read_timeout=120.0,
    )
    return MusterRendezvous(settings)


def test_each_round_has_a_separate_store_that_workers_can_use() -> None:
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


def test_a_node_that_joins_after_the_job_succeeded_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
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
