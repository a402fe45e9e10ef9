"""The node side of `muster programs` and `muster reap`: its output is one JSON object. Without Ray's cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from muster.placement import __main__ as module
from muster.placement.runtime.inventory import Inventory, Ownership, RunningGroup, RunningProgram

LOST = Ownership(False, "its owner is gone")
FOUND = Inventory(
    [
        RunningProgram("kept", "ns", "running", {"pid": 1}, Ownership(True, "its owner")),
        RunningProgram("lost", "ns", "running", {"pid": 2}, LOST),
    ],
    [RunningGroup("chat/1/0", LOST)],
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def reap(found: Inventory, grace: float | None) -> list[str]:
        seen["reaped"] = (found, grace)
        return ["lost"]

    monkeypatch.setattr(module.ray, "init", lambda **options: seen.update(options))
    monkeypatch.setattr(module, "take_inventory", lambda: FOUND)
    monkeypatch.setattr(module, "reap", reap)
    return seen


def names(output: str) -> tuple[list[str], list[str]]:
    record = json.loads(output.splitlines()[-1])
    return [program["name"] for program in record["programs"]], [group["name"] for group in record["groups"]]


def test_a_list_has_everything_and_reaps_nothing(calls: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["list"]) == 0
    assert names(capsys.readouterr().out) == (["kept", "lost"], ["chat/1/0"])
    assert "reaped" not in calls


@pytest.mark.parametrize(("arguments", "grace"), [(["reap"], None), (["reap", "2.5"], 2.5)])
def test_a_reap_lists_what_had_no_owner_and_which_actors_were_silent(
    calls: dict[str, Any], capsys: pytest.CaptureFixture[str], arguments: list[str], grace: float | None
) -> None:
    assert module.main(arguments) == 0
    output = capsys.readouterr().out
    assert names(output) == (["lost"], ["chat/1/0"]) and json.loads(output)["silent"] == ["lost"]
    assert calls["reaped"] == (FOUND, grace)


@pytest.mark.parametrize(("variable", "address"), [(None, "auto"), ("10.0.0.1:6379", "10.0.0.1:6379")])
def test_it_joins_a_running_cluster_and_never_starts_one(
    calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch, variable: str | None, address: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    module.main(["list"])
    assert calls["address"] == address and calls["namespace"] == "muster"
