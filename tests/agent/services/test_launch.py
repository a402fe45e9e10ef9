"""Command, environment and stdin of one start."""

from __future__ import annotations

import json
import sys

from muster.agent.service_model import ServiceDefinition
from muster.agent.services import sandbox
from muster.agent.services.launch import InstanceContext, build_launch, endpoints


def test_a_service_gets_all_of_the_environment_or_what_is_named(context: InstanceContext) -> None:
    service = ServiceDefinition("web", ["serve", "{http}"], env={"AT": "{http}"}, ports={"http": "auto"})
    launch = build_launch(service, context, {"http": 7001}, "/tmp/d")
    assert launch.argv == ["serve", "7001"]
    assert launch.env == {**context.env, "MUSTER_PORT_HTTP": "7001", "MUSTER_SERVICE_DIR": "/tmp/d", "AT": "7001"}
    named = ServiceDefinition("web", ["serve"], env_passthrough=["KE*"])
    assert set(build_launch(named, context, {}, "/d").env) == {"PATH", "KEPT", "MUSTER_SERVICE_DIR"}


def test_a_sandbox_reads_its_settings_from_stdin(context: InstanceContext) -> None:
    service = ServiceDefinition("box", kind="sandbox", settings={"workers_max": 3})
    leased = {"http": 7001, "between": 7002}
    launch = build_launch(service, context, leased, "/tmp/d")
    assert launch.argv == [sys.executable, "-I", "-S", "/run/agent.pyz", "sandbox", "-"]
    assert set(launch.env) == {"PATH"}  # programs in the sandbox see nothing of the job
    settings = json.loads(launch.stdin or b"")
    assert (settings["port"], settings["listen"], settings["workers_max"]) == (7001, "127.0.0.1:7002", 3)
    assert (settings["ready_file"], settings["members_file"]) == ("/tmp/d/ready.json", "/tmp/d/members.json")
    assert settings["token"] == sandbox.token(b"secret") and len(settings["token"]) == 64
    assert endpoints(service, "10.0.0.1", leased) == ("http://127.0.0.1:7001", "http://10.0.0.1:7002")
