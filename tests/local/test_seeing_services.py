"""The views of real runs show which part waited for which service, and the output of a failed service."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.local.timelines import seen
from tests.running import MusterCommand, wait_for
from tests.views.drawing import drawn
from tests.views.timelines import phases

from muster.rundir import RunPaths
from muster.views.metrics import metrics
from muster.views.phases import Phase
from muster.views.record import RunReader
from muster.views.services import services
from muster.views.terminal import Top

DRIVER = """
import os, time
from muster.sandbox import Client
with Client() as box:
    for number in range(20):
        assert box.execute(f"print({number})").stdout == f"{number}\\n"
print("twenty programs", flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
"""
KNOW_WHERE = ("--setup", "export WHERE=$MUSTER_RANK")  # a service is told no rank


def job(muster: MusterCommand, **services: dict[str, Any]) -> str:
    """A job file with these services; JSON is YAML, too."""
    (muster.cwd / "job.yaml").write_text(json.dumps({"services": services}))
    return "job.yaml"


def judge(command: str, deadline: str = "60s") -> dict[str, Any]:
    return {"command": command, "ports": {"http": "auto"}, "deadline": deadline}


def test_the_phases_of_a_run_with_services_add_up_and_its_path_goes_through_the_slow_one(muster: MusterCommand) -> None:
    slow = "[ $WHERE != 1 ] || sleep 3; echo judge is up; exec python3 -m http.server {http}"
    done = muster.local("-f", job(muster, judge=judge(slow)), *KNOW_WHERE, "--", "true", nodes=2)
    assert done.returncode == 0, done.stderr
    (attempt,) = seen(muster).attempts
    assert phases(attempt.nodes[0]).count("services") == 1 and "joined" in phases(attempt.nodes[0])
    assert attempt.nodes[1].seconds(Phase.SERVICES) > 3.0
    (step,) = [step for step in attempt.cycles[0].path if step.phase is Phase.SERVICES]
    assert (step.node_index, step.what) == (1, "waiting for judge on node-1") and step.seconds > 3.0
    (service,) = services(RunReader(RunPaths(str(muster.run_dir()))).read())
    assert (service.name, service.ready, service.wanted) == ("judge", 2, 2)
    assert all(instance.url.startswith("http://") for instance in service.instances)


def test_a_service_that_was_never_ready_is_told_with_the_end_of_its_log(muster: MusterCommand) -> None:
    stuck = "if [ $WHERE = 1 ]; then echo no licence; exec sleep 1000; fi; exec python3 -m http.server {http}"
    done = muster.local("-f", job(muster, judge=judge(stuck, "6s")), *KNOW_WHERE, "--", "true", nodes=2)
    assert done.returncode == 125
    (attempt,) = seen(muster).attempts
    assert attempt.cycles[0].path[-1].what == "waiting for judge on node-1"
    text = muster("report", "--text").stdout
    assert "judge" in text and "failed on node-1" in text and "    | no licence" in text
    assert "no licence" in (muster.run_dir() / "report.html").read_text()


def test_what_a_sandbox_does_is_seen_while_it_does_it(muster: MusterCommand) -> None:
    (muster.cwd / "driver.py").write_text(DRIVER)
    sandbox = {"kind": "sandbox", "settings": {"workers_min": 1, "workers_max": 3, "preload": []}}
    process = muster.start(*muster.local_args("-f", job(muster, sandbox=sandbox), "--", "python", "driver.py", nodes=1))
    run = RunPaths(str(muster.wait_for_driver("twenty programs")))
    reader = RunReader(run)

    def counted() -> bool:
        (service,) = services(reader.read())
        return any(load.executed >= 20 for _, load in service.loads)

    wait_for("the load to be told", counted)
    text = "\n".join(drawn(Top(run)))
    assert "service sandbox: 1 of 1 ready" in text
    assert re.search(r"load: 0 of 3 busy, \d+\.\d/s, 2\d executed", text), text
    assert re.search(r'sandbox_executions\{.*service="sandbox",host="node-0"\} 2\d\n', metrics(reader.read()))
    (muster.cwd / "go").touch()
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert [step.what for step in seen(muster).attempts[0].cycles[0].path if step.phase is Phase.SERVICES] == [
        "waiting for sandbox on node-0"
    ]
