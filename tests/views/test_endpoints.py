"""An endpoint in every view: its replicas, their states and versions, and the load of all nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.views.drawing import drawn
from tests.views.service_runs import read
from tests.views.synthetic import SyntheticRun

from muster.agent.services.endpoint_load import sum_loads
from muster.rundir import read_json, write_json
from muster.views.endpoints import endpoint_line, endpoint_load, replica_line
from muster.views.metrics import metrics
from muster.views.model import page_model
from muster.views.summary import summary
from muster.views.terminal import Top


def replica(number: int, state: str = "ready", **more: Any) -> dict[str, Any]:
    known = {"outstanding": 1, "requests": 10, "failed": 0, "weights_version": "7", "models": [], "reason": ""}
    return {"url": f"http://10.0.0.{number}:7000", "state": state, **known, **more}


def load(*replicas: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"outstanding": 2, "waiting": 0, "requests": 20, "failed": 0, "replicas": list(replicas), **more}


TWO_NODES = sum_loads(
    [load(replica(1), replica(2)), load(replica(1), replica(2, "unhealthy", failed=3, weights_version="8"), waiting=4)]
)
TOTALS = "replicas: 1 of 2 ready; 4 requests outstanding, 4 waiting for a replica, 40 in total"
REPLICAS = [
    "10.0.0.1:7000: ready, weights version 7, 2 outstanding, 20 requests",
    "10.0.0.2:7000: unhealthy at 1 of 2 nodes, weights version 7, 8, 2 outstanding, 20 requests, 3 failed",
]


def test_the_lines_of_an_endpoint_say_what_its_replicas_do() -> None:
    found = endpoint_load(TWO_NODES)
    assert endpoint_line(found) == TOTALS
    assert [replica_line(one) for one in found.replicas] == REPLICAS


def test_a_load_of_another_form_is_empty() -> None:
    assert endpoint_load({"replicas": 3, "requests": "x"}) == endpoint_load({})


def test_every_view_shows_the_replicas(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2, services=("web-endpoint",))
    run.brings_up()
    for node_index in range(2):
        run.service("web-endpoint", node_index)
    run.write("running")
    path = run.attempt.status(0)
    status = read_json(path)
    assert status is not None
    status["services"]["web-endpoint"] |= {"kind": "endpoint", "of": "web", "load": TWO_NODES}
    write_json(path, status)
    record = read(run)
    text = "\n".join(summary(record))
    assert all(line in text for line in (TOTALS, *REPLICAS))
    assert TOTALS in "\n".join(drawn(Top(run.paths, lambda: run.now + 1.0)))
    (service,) = page_model(record)["services"]
    assert service["endpoint"] == [TOTALS, *REPLICAS]
    lines = metrics(record).splitlines()
    assert 'muster_run_endpoint_requests{run="r",service="web-endpoint"} 40' in lines
    assert 'muster_run_endpoint_replica_ready{run="r",service="web-endpoint",replica="10.0.0.2:7000"} 1' in lines
