"""Endpoint variables: of the nearest instance, of all that can be reached, and from which records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from muster.agent.services.discovery import URLS_VARIABLE_MAX_BYTES, Endpoints, published_variables
from muster.rundir import RunPaths


def record(*states: str, local: bool = False, cycle: int = 0) -> dict[str, Any]:
    instances = [
        {"rank": node_index, "state": state, "url": f"http://n{node_index}:80"}
        for node_index, state in enumerate(states)
    ]
    return {"instances": instances, "local": local, "attempt": 0, "cycle": cycle}


def test_a_node_finds_its_own_instance_and_all_that_are_ready() -> None:
    endpoints = Endpoints.of_record(record("ready", "starting", "ready"))
    urls = {"MUSTER_SERVICE_CODE_JUDGE_URLS": "http://n0:80,http://n2:80"}
    for node_index, nearest in ((2, "http://n2:80"), (1, "http://n0:80")):
        found = endpoints.variables("code-judge", node_index, "/file")
        assert found == {"MUSTER_SERVICE_CODE_JUDGE": nearest, **urls}
    assert Endpoints.of_record(record("starting")).variables("code-judge", 0, "/file") == {}


def test_a_local_service_is_found_only_on_its_node() -> None:
    endpoints = Endpoints.of_record(record("ready", "failed", "ready", local=True))
    assert endpoints.variables("box", 0, "/file")["MUSTER_SERVICE_BOX_URLS"] == "http://n0:80"
    assert endpoints.variables("box", 1, "/file") == {}
    assert (endpoints.reachable(2), endpoints.reachable(1)) == (("http://n2:80",), ())


def test_endpoints_are_in_a_file_only_if_they_are_too_many_for_a_variable() -> None:
    """The kernel rejects a variable of 128 KiB."""
    few = URLS_VARIABLE_MAX_BYTES // len("http://n1000:80,")
    for count, variable in ((few, "MUSTER_SERVICE_WEB_URLS"), (2 * few, "MUSTER_SERVICE_WEB_URLS_FILE")):
        found = Endpoints.of_record(record(*["ready"] * count)).variables("web", 1, "/file")
        assert set(found) == {"MUSTER_SERVICE_WEB", variable}
        assert all(len(value) <= URLS_VARIABLE_MAX_BYTES for value in found.values())
    assert found["MUSTER_SERVICE_WEB_URLS_FILE"] == "/file"
    many_local = Endpoints.of_record(record(*["ready"] * 2 * few, local=True))
    assert many_local.variables("web", 1, "/file")["MUSTER_SERVICE_WEB_URLS"] == "http://n1:80"


def test_only_records_of_this_attempt_and_cycle_are_read(tmp_path: Path) -> None:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    Path(attempt.services_dir).mkdir(parents=True)
    for name, cycle in (("old", 0), ("web", 1)):
        Path(attempt.service_record(name)).write_text(json.dumps(record("ready", cycle=cycle)))
    found = published_variables(attempt, 0, 1)
    assert found.pop("MUSTER_SERVICES_DIR") == attempt.services_dir
    assert set(found) == {"MUSTER_SERVICE_WEB", "MUSTER_SERVICE_WEB_URLS"}
