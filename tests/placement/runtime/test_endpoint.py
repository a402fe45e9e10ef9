"""The replicas of an endpoint, as the leader finds them, and its confirmation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.placement.runtime.endpoint import EndpointPublisher


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_SERVICES_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_CYCLE", "2")
    confirm(tmp_path, None)
    return tmp_path


def confirm(services: Path, version: int | None, cycle: int = 2) -> None:
    (services / "chat.json").write_text(json.dumps({"cycle": cycle, "replicas_version": version}))


def published(services: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((services / "chat.replicas").read_text())
    return found


def test_each_change_has_a_newer_version(services: Path) -> None:
    publisher = EndpointPublisher("chat")
    first = publisher.publish(["http://b:1", "http://a:1"])
    assert published(services) == {"version": first, "cycle": 2, "urls": ["http://a:1", "http://b:1"]}
    assert publisher.publish(["http://a:1", "http://b:1"]) == first
    assert publisher.publish([]) > first and published(services)["urls"] == []


def test_a_list_is_served_when_the_leader_confirms_it_or_a_newer_one(services: Path) -> None:
    publisher = EndpointPublisher("chat")
    version = publisher.publish(["http://a:1"])
    assert not publisher.wait_until_served(version, 0.01)
    confirm(services, version - 1)
    assert not publisher.wait_until_served(version, 0.01)
    confirm(services, version, cycle=1)
    assert not publisher.wait_until_served(version, 0.01)
    confirm(services, version + 1)
    assert publisher.wait_until_served(version, 0.01)


def test_nothing_is_waited_for_before_anything_was_published(services: Path) -> None:
    assert EndpointPublisher("chat").wait_until_served(0, 0.0)


def test_an_endpoint_that_the_job_does_not_have_is_refused_with_what_to_add(
    services: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LookupError, match=r"add `judge: \{kind: endpoint\}` to `services`"):
        EndpointPublisher("judge")
    monkeypatch.delenv("MUSTER_SERVICES_DIR")
    with pytest.raises(LookupError, match="no endpoint 'chat'"):
        EndpointPublisher("chat")
