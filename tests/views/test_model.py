"""The data that a page shows of a run."""

from __future__ import annotations

import json
from pathlib import Path

from tests.views.service_runs import busy, read
from tests.views.synthetic import START, SyntheticRun, large_run

from muster.rundir import write_json
from muster.views.model import INDEX, SHOWN_EVENTS, page_model
from muster.views.phases import Phase
from muster.views.record import RunReader


def test_the_model_of_a_page_adds_up_too(tmp_path: Path) -> None:
    model = page_model(RunReader(large_run(tmp_path / "r", nodes=24).paths).read())
    (attempt,) = model["attempts"]
    for _, _, _, _, spans, _ in attempt["nodes"]:
        assert spans[1] == attempt["start"] and spans[1::2] == sorted(spans[1::2])
    assert attempt["end"] == model["wall"]


def test_the_model_has_each_instance_with_its_log(tmp_path: Path) -> None:
    (service,) = page_model(read(busy(tmp_path / "r")))["services"]
    assert (service["ready"], service["wanted"], service["load"]["running"]) == (4, 4, 10)
    assert service["instances"][2]["log"] == "attempt-0/logs/services/sandbox/gpu0002.log"
    assert service["instances"][2]["load"]["queued"] == 5


def test_times_are_whole_milliseconds_since_the_request(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.write("running")
    model = page_model(read(run, START + 100.0))
    assert (model["asked"], model["now"], model["wall"]) == (START, 100_000, 100_000)
    (attempt,) = model["attempts"]
    assert (attempt["start"], attempt["began"]) == (0, 30_000)
    (cycle,) = attempt["cycles"]
    started, ended = cycle["driver"]
    assert ended is None and cycle["path"][-1][3] == started
    assert model["waits"] == ["the driver runs", started]


def test_phases_are_numbers_into_the_list_of_phases(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.ends()
    model = page_model(read(run))
    assert [phase["name"] for phase in model["phases"]] == [phase.value for phase in Phase]
    assert [node[-1] for node in model["attempts"][0]["nodes"]] == [INDEX[Phase.GONE]] * 2
    assert dict(model["node_seconds"])[INDEX[Phase.DRIVER]] == 180.0


def test_only_the_last_events_are_listed_without_changes_of_nodes_and_readiness(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 1, services=("web",))
    run.node(0, "arrived")
    run.service("web", 0, "ready")
    run.service("web", 0, "restarting", reason="exited with 3")
    for number in range(SHOWN_EVENTS):
        run.tell("note", 1.0, host="gpu0000", text=f"note {number}")
    run.tell("driver_start", 1.0)
    run.write("running")
    happenings = page_model(read(run))["happenings"]
    assert len(happenings) == SHOWN_EVENTS
    assert [entry[1:] for entry in happenings[-2:]] == [
        ["note", f"gpu0000 note {SHOWN_EVENTS - 1}"],
        ["driver_start", "driver start"],
    ]
    run.lines = run.lines[:3]
    run.write("running")
    assert [entry[1:] for entry in page_model(read(run))["happenings"]] == [
        ["service", "gpu0000 web restarting exited with 3"]
    ]


def test_the_job_is_shown_without_empty_fields_and_secrets(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 1)
    write_json(run.paths.job, {"nodes": 1, "command": ["x", "--password", "verysecret1"], "groups": [], "time": None})
    model = page_model(read(run))
    assert model["spec"] == {"nodes": 1, "command": ["x", "--password", "***"]}
    assert model["command"] == ["x", "--password", "***"]


def test_a_failure_has_the_tail_that_the_caller_reads_where_the_event_has_none(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.error = {"rank": 1, "host": "gpu0001", "phase": "ray", "reason": "it broke", "log_tail": []}
    run.ends(1)
    (failure,) = page_model(read(run), lambda attempt, node_index: [f"{attempt} {node_index}", "\x1b[31mred"])[
        "failures"
    ]
    assert (failure["host"], failure["reason"], failure["tail"]) == ("gpu0001", "it broke", ["0 1", "red"])


def test_the_model_of_a_run_that_has_not_begun_is_json(tmp_path: Path) -> None:
    model = page_model(RunReader(SyntheticRun(tmp_path / "r", 2).paths).read())
    assert model["live"] and json.loads(json.dumps(model)) == model
