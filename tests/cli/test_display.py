"""What `muster run` prints about events, output and the end of a run, without a terminal and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.api import prepare
from muster.cli.display import Display, JsonDisplay, make_display
from muster.runs.follow import Output, RunEvent, RunResult
from muster.spec import JobSpec


@pytest.mark.parametrize("state", ["ready", "restarting", "failed", "ended"])
def test_a_restarted_service_is_reported_without_control_characters(
    state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """That it is ready is no news, and its failure ends the run, which is told by itself."""
    told = {"event": "service", "service": "judge", "rank": 1, "host": "n1\x1b[2J", "reason": "exited with 3"}
    Display(2, ray_nodes=0).show(RunEvent({**told, "state": state}))
    said = capsys.readouterr().err
    assert ("service judge on n1\ufffd[2J exited with 3; restarting it" in said) == (state == "restarting")
    assert (said == "") == (state != "restarting") and "\x1b" not in said


@pytest.mark.parametrize(
    "name", ["node", "run", "service", "again", "driver_start", "events_lost", "of another version"]
)
@pytest.mark.parametrize("kind", [Display, lambda nodes, ray_nodes: JsonDisplay()])
def test_an_event_without_its_fields_or_with_foreign_ones_ends_nothing(name: str, kind: type[Display]) -> None:
    display = kind(2, ray_nodes=0)
    for fields in ({}, {"state": [], "rank": {}, "host": 7, "attempt": "x"}, {"state": "restarting"}):
        display.show(RunEvent({"event": name, **fields}))


def test_lost_events_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Display(2, ray_nodes=0).show(RunEvent({"event": "events_lost", "file": "/runs/r/attempt-0/events-0.jsonl"}))
    said = capsys.readouterr().err
    assert "/runs/r/attempt-0/events-0.jsonl" in said and "disk" in said and "the run itself is not affected" in said


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {"event": "failure", "phase": "start", "host": "n1", "rank": 1, "reason": "--setup failed with code 3"},
            "node n1 (index 1) failed in phase 'start': --setup failed with code 3",
        ),
        ({"event": "failure", "phase": "driver", "host": "n1", "rank": 1, "reason": "the driver exited with 3"}, None),
        ({"event": "node", "state": "lost", "host": "n1", "rank": 1}, None),
        ({"event": "node", "state": "ready", "host": "n1", "rank": 1}, None),
        ({"event": "run", "state": "gathering"}, "waiting for 2 nodes"),
        ({"event": "run", "state": "starting"}, "all 2 nodes arrived"),
        ({"event": "run", "state": "running"}, None),
        ({"event": "driver_start"}, "Ray is up on 2 nodes; driver started"),
        ({"event": "waiting", "text": "waiting for a leader"}, "waiting for a leader"),
        (
            {"event": "control", "host": "n1", "kind": "exclude_node", "reason": "bad memory"},
            "a program on n1 requests exclude_node: bad memory",
        ),
        ({"event": "hang", "reason": "the run hangs: rank 3"}, "the run hangs: rank 3"),
        ({"event": "unended", "host": "n1", "reason": "process 7 is stuck"}, "n1: process 7 is stuck"),
        (
            {"event": "gcs_restart", "host": "n0", "reason": "Ray's gcs_server exited with 1", "seconds": 0.412},
            "n0: Ray's gcs_server exited with 1; restarted with its state after 0.412 s",
        ),
        ({"event": "again", "attempt": 0, "again": "chain"}, "attempt 0 ended: the next job of the chain follows"),
        (
            {"event": "job", "state": "cancelled", "job": "17"},
            "cancelled Slurm job 17: its job script did not end it",
        ),
    ],
)
def test_an_event_that_matters_has_one_line(
    event: dict[str, Any], line: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    Display(2, ray_nodes=2).show(RunEvent(event))
    out, err = capsys.readouterr()
    assert out == "" and [text.partition(" s] ")[2] for text in err.splitlines()] == ([line] if line else [])


def test_a_failure_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(2, ray_nodes=2)
    error = {"phase": "running", "host": "n1", "rank": 1, "reason": "it broke", "log_tail": ["last words"]}
    display.show(RunEvent({"event": "failure", **error}))
    display.ended(RunResult("train", "/runs/train", "17", "failed", 125, "the run broke", error))
    said = capsys.readouterr().err
    assert said.count("failed in phase 'running': it broke") == 1
    assert "failed: the run broke (exit code 125)" in said
    assert "last lines of the log of n1:" in said and "    | last words" in said


def test_a_spare_that_takes_over_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(3, ray_nodes=3)
    for node, role, rank in ((1, "active", 1), (2, "spare", None), (2, "active", 1), (2, "active", 1)):
        event = {"event": "node", "state": "ready", "host": f"n{node}", "rank": node}
        display.show(RunEvent({**event, "role": role, "logical_rank": rank}))
    assert [line.partition(" s] ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "spare n2 (index 2) takes over rank 1"
    ]


def test_a_cycle_that_begins_with_fewer_nodes_and_a_late_one_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(3, ray_nodes=3)
    late = {"event": "node", "state": "arrived", "host": "n2", "rank": 2}
    for event in (
        {"event": "run", "state": "starting", "nodes": 2},
        {"event": "driver_start"},
        {**late, "role": "spare", "logical_rank": None},
        {**late, "role": "active", "logical_rank": 2},
    ):
        display.show(RunEvent(event))
    assert [line.partition(" s] ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "2 of 3 nodes arrived",
        "Ray is up on 2 nodes; driver started",
        "n2 (index 2) has arrived late and gets rank 2",
    ]


def test_one_node_is_not_called_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(1, ray_nodes=1)
    for event in ({"event": "run", "state": "gathering"}, {"event": "run", "state": "starting"}):
        display.show(RunEvent(event))
    display.show(RunEvent({"event": "driver_start"}))
    said = capsys.readouterr().err
    assert "waiting for 1 node\n" in said and "1 node arrived\n" in said and "Ray is up on 1 node;" in said
    assert "nodes" not in said


def test_output_goes_to_stdout_unchanged(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Display(2, ray_nodes=2).show(Output(b"\xff loss 0.1\n"))
    assert capfdbinary.readouterr() == (b"\xff loss 0.1\n", b"")


def test_json_lines_have_events_output_and_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonDisplay()
    display.submitted("train", "17", "/runs/train")
    display.detached("train", "17")
    display.show(RunEvent({"event": "run", "state": "running"}))
    display.show(Output("ü".encode()))
    display.show(Output(b"\xff"))
    display.ended(RunResult("train", "/runs/train", "17", "failed", 7, "x", None))
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert err == "" and [event["event"] for event in events] == ["submitted", "run", "output", "output", "result"]
    assert (events[2]["text"], events[3]["base64"], events[4]["exit_code"]) == ("ü", "/w==", 7)
    assert all(event["time"] > 0 for event in events)


@pytest.mark.usefixtures("capsys")
def test_without_a_terminal_lines_are_printed_and_json_only_if_asked() -> None:
    prepared = prepare(JobSpec(command=["true"], backend="local"))
    assert type(make_display(prepared, as_json=True)) is JsonDisplay
    assert type(make_display(prepared, as_json=False)) is Display
