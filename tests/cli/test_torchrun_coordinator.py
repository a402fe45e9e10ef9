"""`muster torchrun-coordinator`: its settings, what it prints, its exit code."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.invocation import Invoke

from muster.cli import torchrun_coordinator
from muster.lifecycle.events import RunOutcome
from muster.torch import coordinator
from muster.torch.settings import RendezvousSettings

COORDINATOR = ("torchrun-coordinator", "--nnodes", "4")


@pytest.fixture(autouse=True)
def without_importing_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the two modules that import torch, which takes seconds, and leave the root logger as it is."""

    def parse_nnodes(text: str) -> tuple[int, int]:
        return int(text), int(text)

    found: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "torch" else found(name))
    monkeypatch.setitem(sys.modules, "muster.torch.launcher", SimpleNamespace(parse_nnodes=parse_nnodes))
    monkeypatch.setitem(sys.modules, "muster.torch.handler", SimpleNamespace(open_store=lambda settings: None))
    monkeypatch.setattr(torchrun_coordinator, "log_to_stderr", lambda host: None)


@pytest.fixture
def coordinated(monkeypatch: pytest.MonkeyPatch) -> list[RendezvousSettings]:
    """Record the settings instead of coordinating; the job ends with code 7."""
    seen: list[RendezvousSettings] = []

    def coordinate(settings: RendezvousSettings, open_store: object, announce: Callable[[int], None]) -> RunOutcome:
        seen.append(settings)
        announce(29400)
        return RunOutcome("failed", 7, "rank 3 failed")

    monkeypatch.setattr(coordinator, "coordinate", coordinate)
    return seen


def test_the_exit_code_is_the_job_s_and_its_end_is_printed(
    coordinated: list[RendezvousSettings], invoke: Invoke
) -> None:
    done = invoke(
        *COORDINATOR, "--rdzv-endpoint", "host:29400", "--rdzv-id", "4711", "--spares", "1", "--last-call", "9"
    )
    assert (done.code, done.out) == (7, "")
    assert "muster: coordinating at port 29400\nmuster: the job failed: rank 3 failed\n" in done.err
    (settings,) = coordinated
    assert (settings.port, settings.run_id) == (29400, "4711")
    config = settings.config
    assert (config.min_nodes, config.max_nodes, config.spares, config.last_call) == (4, 4, 1, 9.0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rdzv-endpoint", "host:port"], "port"),
        ([], "endpoint"),
        (["--rdzv-endpoint", "h:1", "--nnodes", "few"], "few"),
    ],
)
def test_invalid_settings_are_refused(
    words: list[str], told: str, coordinated: list[RendezvousSettings], invoke: Invoke
) -> None:
    done = invoke(*COORDINATOR, *words)
    assert done.code == 2 and told in done.err and coordinated == []


def test_a_port_in_use_is_an_error(invoke: Invoke) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = invoke(*COORDINATOR, "--rdzv-endpoint", f"{socket.gethostname()}:{port}")
    assert done.code == 1 and f"port {port} is in use on this host" in done.err


def test_without_torch_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = invoke(*COORDINATOR)
    assert done.code == 1 and "`muster torchrun-coordinator` needs torch in the same environment" in done.err


def test_the_number_of_nodes_is_needed(invoke: Invoke) -> None:
    done = invoke("torchrun-coordinator")
    assert done.code == 2 and "--nnodes" in done.err
