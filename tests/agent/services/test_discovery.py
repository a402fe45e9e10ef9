"""Endpoint variables: of the nearest instance, of all that can be reached, and from which records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from muster.agent.services.discovery import endpoint_variables, published_variables
from muster.rundir import RunPaths


def record(*states: str, local: bool = False, cycle: int = 0) -> dict[str, Any]:
    instances = [{"rank": rank, "state": state, "url": f"http://n{rank}:80"} for rank, state in enumerate(states)]
    return {"instances": instances, "local": local, "attempt": 0, "cycle": cycle}


def test_a_node_finds_its_own_instance_and_all_that_are_ready() -> None:
    records = {"code-judge": record("ready", "starting", "ready")}
    urls = {"MUSTER_SERVICE_CODE_JUDGE_URLS": "http://n0:80,http://n2:80"}
    assert endpoint_variables(records, 2) == {"MUSTER_SERVICE_CODE_JUDGE": "http://n2:80", **urls}
    assert endpoint_variables(records, 1) == {"MUSTER_SERVICE_CODE_JUDGE": "http://n0:80", **urls}


def test_a_local_service_is_found_only_on_its_node() -> None:
    records = {"box": record("ready", "failed", local=True)}
    assert endpoint_variables(records, 0)["MUSTER_SERVICE_BOX_URLS"] == "http://n0:80"
    assert endpoint_variables(records, 1) == {}


def test_only_records_of_this_attempt_and_cycle_are_read(tmp_path: Path) -> None:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    Path(attempt.services_dir).mkdir(parents=True)
    for name, cycle in (("old", 0), ("web", 1)):
        Path(attempt.service_record(name)).write_text(json.dumps(record("ready", cycle=cycle)))
    found = published_variables(attempt, 0, 1)
    assert found.pop("MUSTER_SERVICES_DIR") == attempt.services_dir
    assert set(found) == {"MUSTER_SERVICE_WEB", "MUSTER_SERVICE_WEB_URLS"}
