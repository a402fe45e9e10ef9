"""The endpoint of a service in the job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.spec import JobSpec, SpecError, load_job
from muster.spec.fields.endpoints import EndpointOptions
from muster.spec.fields.services import with_endpoints

ENGINE = {"command": "serve {http}", "ports": {"http": "auto"}, "ready": {"http": "/ready"}}


def job(**services: Any) -> JobSpec:
    return load_job(None, {"command": ["true"], "nodes": 4, "services": services})


def refusal(**services: Any) -> str:
    with pytest.raises(SpecError) as refused:
        job(**services)
    (line,) = refused.value.problems
    return line


def test_the_endpoint_of_a_service_is_another_service_on_every_node() -> None:
    found = with_endpoints(job(engine={**ENGINE, "scope": 2, "gate": False, "endpoint": True}).services)
    assert list(found) == ["engine", "engine-endpoint"]
    service, of = found["engine-endpoint"]
    assert (service.kind, service.scope, service.gate, of) == ("endpoint", "all", False, "engine")
    assert service.endpoint == EndpointOptions(health="/ready")  # replicas are checked as the service is probed


def test_options_are_read_from_a_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: [true]\nservices:\n  a:\n    command: serve {http}\n    ports: {http: auto}\n    endpoint: true\n"
        "  b:\n    kind: endpoint\n    endpoint:\n      health: /v1/models\n      interval: 5s\n      wait: 2m\n"
        "      sticky_header: X-Session-Id\n"
    )
    services = load_job(file, {}).services
    assert services["a"].endpoint == EndpointOptions()
    assert services["b"].endpoint == EndpointOptions(
        health="/v1/models", interval=5.0, wait=120.0, sticky_header="x-session-id"
    )


def test_an_endpoint_whose_replicas_programs_publish_needs_no_options() -> None:
    ((service, of),) = with_endpoints(job(chat={"kind": "endpoint"}).services).values()
    assert service.endpoint == EndpointOptions() and of is None


@pytest.mark.parametrize("value", [False, "no", None])
def test_an_endpoint_can_be_switched_off(value: Any) -> None:
    assert list(with_endpoints(job(engine={**ENGINE, "endpoint": value}).services)) == ["engine"]


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({**ENGINE, "endpoint": "maybe"}, "is not true, or options"),
        ({**ENGINE, "endpoint": {"health": "ready"}}, "is not an absolute path"),
        ({**ENGINE, "endpoint": {"sticky_header": "a", "sticky_cookie": "b"}}, "remove one of them"),
        ({**ENGINE, "endpoint": {"sticky_header": "a b"}}, "is not a name of letters"),
        ({"command": "x", "ports": {"api": "auto"}, "endpoint": True}, "no port called http and no ready.http"),
        ({"kind": "endpoint", "command": "x"}, "is an endpoint, for which command cannot be set"),
        ({"kind": "endpoint", "group": "engines"}, "is an endpoint, for which group cannot be set"),
        ({"kind": "endpoint", "env": {"A": "1"}}, "is an endpoint, for which env cannot be set"),
        ({"kind": "endpoint", "ports": {"api": 1}}, "the only port of an endpoint is http"),
        ({"kind": "endpoint", "scope": "head"}, "its scope must be all"),
        ({"kind": "sandbox", "endpoint": True}, "is a sandbox, for which endpoint cannot be set"),
    ],
)
def test_what_an_endpoint_cannot_have(service: dict[str, Any], message: str) -> None:
    assert message in refusal(engine=service)


def test_a_service_may_not_have_the_name_of_an_endpoint() -> None:
    services = {"engine": {**ENGINE, "endpoint": True}, "engine-endpoint": ENGINE}
    assert "engine-endpoint is the name of the endpoint of engine" in refusal(**services)
