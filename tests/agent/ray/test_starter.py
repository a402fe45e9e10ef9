"""What the starter does where `ray start` would hang, or give up too early."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent.ray import starter
from muster.agent.ray.starter import raylet_has_exited, refusal_reason, wait_longer_for_raylet

NOT_REGISTERED = RuntimeError("no such node")


@pytest.mark.parametrize(
    ("version", "address", "refused"),
    [
        ("2.46.0", "fd77::1", True),
        ("2.46.0", "10.77.0.1", False),
        ("2.49.0", "fd77::1", False),
        ("3.0.0.dev0", "fd77::1", False),
    ],
)
def test_a_ray_that_knows_no_ipv6_is_refused_such_an_address_by_both_names(
    version: str, address: str, refused: bool
) -> None:
    reason = refusal_reason(version, ["--head", f"--node-ip-address={address}", "--labels=a:b"])
    assert (reason is not None) == refused
    if reason:
        assert f"Ray {version}" in reason and address in reason


@pytest.fixture
def get_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Ray's lookup of the node that it starts: each call takes the next answer of the list."""
    services = pytest.importorskip("ray._private.services")
    answers: list[object] = []

    def answer(*_: object) -> object:
        value = answers.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(services, "get_node", answer)
    wait_longer_for_raylet()
    yield answers


def test_a_raylet_that_takes_long_to_register_is_waited_for(get_node: list[object]) -> None:
    from ray._private import services

    get_node += [NOT_REGISTERED, NOT_REGISTERED, {"node_id": "a"}]
    assert services.get_node("address", "a") == {"node_id": "a"}


def test_a_raylet_that_never_registers_is_given_up(get_node: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services

    monkeypatch.setattr(starter, "RAYLET_WAIT_S", 0.0)
    get_node += [NOT_REGISTERED] * 2
    with pytest.raises(RuntimeError, match="no such node"):
        services.get_node("address", "a")


def test_a_raylet_that_has_exited_is_not_waited_for(get_node: list[object], tmp_path: Path) -> None:
    from ray._private import services

    shutil.copy("/bin/false", tmp_path / "raylet")
    assert not raylet_has_exited()
    raylet = subprocess.Popen([str(tmp_path / "raylet")])
    os.waitid(os.P_PID, raylet.pid, os.WEXITED | os.WNOWAIT)
    assert raylet_has_exited()
    get_node.append(NOT_REGISTERED)
    with pytest.raises(ChildProcessError, match="the raylet has exited"):
        services.get_node("address", "a")
    assert raylet.wait() == 1
