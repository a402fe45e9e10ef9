"""Services in the job file: accepted and refused fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.agent.services import templating
from muster.spec import JobSpec, SpecError, load_job
from muster.spec.fields import services

JUDGE = {"command": "python judge.py --port {http}", "ports": {"http": "auto"}, "ready": {"http": "/health"}}


def test_placeholders_are_recognized_as_on_the_nodes() -> None:
    assert services.PLACEHOLDER.pattern == templating._PLACEHOLDER.pattern


def job(**fields: Any) -> JobSpec:
    return load_job(None, {"command": ["true"], "nodes": 4, **fields})


def refusal(service: dict[str, Any], name: str = "judge", **more: Any) -> str:
    with pytest.raises(SpecError) as refused:
        job(services={name: service}, **more)
    (line,) = refused.value.problems
    return line


def test_a_service_is_read_from_a_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: [true]\nnodes: 4\nservices:\n  judge:\n    command: serve {http} {admin}\n    scope: 2\n"
        "    ports: {http: auto, admin: 8081}\n    ready: {tcp: admin}\n    gate: false\n    deadline: 1m30s\n"
        "    restart: always\n    max_restarts: 7\n    env: {A: 1}\n    env_passthrough: [HF_*, HOME]\n"
    )
    service = load_job(file, {}).services["judge"]
    assert service.command == ["bash", "-c", "serve {http} {admin}"]
    assert (service.scope, service.ports, service.gate) == (2, {"http": "auto", "admin": 8081}, False)
    assert (service.deadline, service.restart, service.max_restarts) == (90.0, "always", 7)
    assert (service.env, service.env_passthrough) == ({"A": "1"}, ["HF_*", "HOME"])
    assert service.ready is not None and service.ready.tcp == "admin"


def test_omitted_fields_have_defaults() -> None:
    service = job(services={"judge": {"command": ["serve"]}}).services["judge"]
    assert (service.kind, service.scope, service.gate, service.deadline) == ("command", "all", True, 300.0)
    assert (service.restart, service.max_restarts, service.ready, service.ports) == ("on-failure", 3, None, {})


def test_a_job_without_services_has_none() -> None:
    assert job().services == {} and job(services=None).services == {}


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ({}, "services.judge: has no command; add one, or set `kind: sandbox`"),
        ({**JUDGE, "comand": "x"}, "services.judge.comand: is not a field of a service; did you mean command?"),
        ({**JUDGE, "scope": "some"}, "services.judge.scope: 'some' is not valid; allowed: all, head, any, or a number"),
        ({**JUDGE, "scope": 0}, "services.judge.scope: 0 is not valid"),
        ({**JUDGE, "scope": 5}, "services.judge.scope: needs 5 nodes, but the job has 4"),
        ({**JUDGE, "ports": {"http": 70000}}, "services.judge.ports.http: 70000 is not valid; allowed: names with"),
        ({**JUDGE, "ports": {"H": "auto"}}, "is not a name of up to 40 lower-case letters"),
        ({**JUDGE, "deadline": 0}, "services.judge.deadline: 0 "),
        ({**JUDGE, "restart": "often"}, "services.judge.restart: 'often' is not valid; allowed: never, on-failure"),
        ({**JUDGE, "ready": {"http": "health"}}, "services.judge.ready.http: 'health' is not an absolute path"),
        ({**JUDGE, "ready": {}}, "services.judge.ready: has no check; give one of http, tcp, command, file, log"),
        ({**JUDGE, "ready": {"log": "("}}, "is not a regular expression"),
        ({**JUDGE, "ready": {"tcp": "x", "log": "y"}}, "services.judge.ready: has tcp and log; give one of"),
        ({**JUDGE, "ready": {"tcp": "admin"}}, "has ready.tcp: admin, which is not one of its ports (http)"),
        ({"command": "serve", "ready": {"http": "/"}}, "services.judge: has ready.http, but no port to query"),
        ({**JUDGE, "env": {"1A": "x"}}, "services.judge.env.1A: is not the name of an environment variable"),
        ({**JUDGE, "env_passthrough": ["A B"]}, "is not the name of a variable, or a prefix followed by *"),
        ({**JUDGE, "settings": {"network": True}}, "services.judge: has settings, which only a sandbox has"),
        ({**JUDGE, "container": "other.sif"}, "services.judge.container: the job's one srun"),
    ],
)
def test_an_invalid_service_is_refused_with_its_field(service: dict[str, Any], words: str) -> None:
    assert words in refusal(service)


def test_a_service_of_a_group_must_fit_the_groups_of_the_job() -> None:
    groups = [{"name": "trainers", "nodes": 2}, {"name": "engines", "nodes": 1}]
    assert job(nodes=3, groups=groups, services={"judge": {**JUDGE, "group": "engines"}})
    for service, told in (
        ({"group": "engine"}, "services.judge.group: the job has no group 'engine'; its groups are trainers, engines"),
        ({"group": "engines", "scope": 2}, "services.judge.scope: needs 2 nodes, but the group engines has 1"),
    ):
        with pytest.raises(SpecError, match=told):
            job(nodes=3, groups=groups, services={"judge": {**JUDGE, **service}})
    assert "the job has no group 'a'; it has no groups" in refusal({**JUDGE, "group": "a"})
    assert "reaches on its loopback: remove group" in refusal({"kind": "sandbox", "group": "a"})


def test_a_name_must_be_valid_for_a_directory_and_a_variable() -> None:
    assert "is not a name of up to 40 lower-case letters" in refusal(JUDGE, name="a/b")
    with pytest.raises(SpecError, match="two services would set MUSTER_SERVICE_A_B"):
        job(services={"a-b": JUDGE, "a_b": JUDGE})


def test_the_jobs_own_image_may_be_named() -> None:
    spec = job(services={"judge": {**JUDGE, "container": "job.sif"}}, container_image="job.sif")
    assert spec.services["judge"].container == "job.sif"


def test_errors_do_not_quote_a_secret_of_a_service() -> None:
    secret = "sesame-open-now"
    assert secret not in refusal({**JUDGE, "env": {"API_TOKEN": secret}, "restart": "often"})
    assert secret not in refusal({"env": {"API_TOKEN": secret}})


# -- sandboxes ----------------------------------------------------------------------------------------------------


def test_a_sandbox_s_settings_get_their_types() -> None:
    given = {"workers_max": "64", "network": "false", "idle_s": "1.5", "preload": ["numpy"], "env": {"A": "1"}}
    service = job(services={"sandbox": {"kind": "sandbox", "settings": given}}).services["sandbox"]
    assert service.settings == {
        "workers_max": 64,
        "network": False,
        "idle_s": 1.5,
        "preload": ["numpy"],
        "env": {"A": "1"},
    }
    assert json.loads(json.dumps(service.model_dump(mode="json")))["settings"]["workers_max"] == 64


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"command": "x"}, "is a sandbox, for which command cannot be set"),
        ({"ready": {"log": "x"}}, "is a sandbox, for which ready cannot be set"),
        ({"scope": "any"}, "whose endpoint is each node's loopback: its scope must be all or head"),
        ({"ports": {"admin": "auto"}}, "the only port of a sandbox that can be set is http"),
        ({"settings": {"token": "x"}}, "has 'token', which the agents decide"),
        ({"settings": {"worker_max": 3}}, "which is not a setting of a sandbox; did you mean workers_max?"),
        ({"settings": {"workers_max": "many"}}, "has workers_max: 'many', which is not of the type int"),
        ({"settings": {"isolation": "none"}}, "has isolation: 'none', which is not one of auto, full, floor, process"),
    ],
)
def test_an_invalid_sandbox_is_refused(more: dict[str, Any], words: str) -> None:
    assert words in refusal({"kind": "sandbox", **more}, name="sandbox")
