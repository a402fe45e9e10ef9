"""Seeing real services on this machine: who waited for which, and what a failed one said."""

from __future__ import annotations

import json

import pytest
from tests.local.test_seeing import seen
from tests.running import MusterCommand
from tests.views.test_timeline import phases

from muster.board import RunPaths
from muster.views.phases import Phase
from muster.views.record import RunReader
from muster.views.services import services

pytest.importorskip("muster.agent.services")

KNOW_WHERE = ("--setup", "export WHERE=$MUSTER_RANK")  # a service is told no rank


def job(muster: MusterCommand, command: str, deadline: str = "60s") -> str:
    """A job file with one service on every node; JSON is YAML, too."""
    judge = {"command": command, "ports": {"http": "auto"}, "deadline": deadline}
    (muster.cwd / "job.yaml").write_text(json.dumps({"services": {"judge": judge}}))
    return "job.yaml"


def test_the_phases_of_a_run_with_services_add_up_and_its_path_goes_through_the_slow_one(muster: MusterCommand) -> None:
    slow = "[ $WHERE != 1 ] || sleep 3; echo judge is up; exec python3 -m http.server {http}"
    done = muster.local("-f", job(muster, slow), *KNOW_WHERE, "--", "true", nodes=2)
    assert done.returncode == 0, done.stderr
    (attempt,) = seen(muster).attempts
    assert phases(attempt.nodes[0]).count("services") == 1 and "joined" in phases(attempt.nodes[0])
    assert attempt.nodes[1].seconds(Phase.SERVICES) > 3.0
    (step,) = [step for step in attempt.cycles[0].path if step.phase is Phase.SERVICES]
    assert (step.rank, step.what) == (1, "judge is awaited on node-1") and step.seconds > 3.0
    (service,) = services(RunReader(RunPaths(str(muster.run_dir()))).read())
    assert (service.name, service.ready, service.wanted) == ("judge", 2, 2)
    assert all(instance.url.startswith("http://") for instance in service.instances)


def test_a_service_that_was_never_ready_is_told_with_the_end_of_its_log(muster: MusterCommand) -> None:
    stuck = "if [ $WHERE = 1 ]; then echo no licence; exec sleep 1000; fi; exec python3 -m http.server {http}"
    done = muster.local("-f", job(muster, stuck, "3s"), *KNOW_WHERE, "--", "true", nodes=2)
    assert done.returncode == 125
    (attempt,) = seen(muster).attempts
    assert attempt.cycles[0].path[-1].what == "judge is awaited on node-1"
    text = muster("report", "--text").stdout
    assert "judge" in text and "failed on node-1" in text and "    | no licence" in text
    assert "no licence" in (muster.run_dir() / "report.html").read_text()
