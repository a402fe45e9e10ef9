"""The query about what `muster.placement` runs, and the table of its answer."""

from __future__ import annotations

import json
import time
from typing import Any

import click
import pytest
from tests.cli.invocation import StartRun, node_program

from muster.cli.node_entry import entry_for
from muster.cli.placement_inventory import _duration, print_placement, query_placement
from muster.rundir import write_json

RAY = {"address": "n0:6379"}


def entry(name: str, state: str = "running", owned: bool | None = True, **more: Any) -> dict[str, Any]:
    fields = {"host": "n1", "pid": 42, "since": time.time() - 7300, "exit": None, "why": "process 7 on n0"}
    return {"name": name, "state": state, "owned": owned, **fields, **more}


def test_the_last_json_line_of_the_node_s_output_is_the_answer(start_run: StartRun) -> None:
    run = start_run("train", ray=RAY)
    node_program(run, 'echo noise; echo \'{"old": 1}\'; printf \'{"asked": %s}\\n\' "$MUSTER_SESSION_COMMAND"')
    asked = query_placement(entry_for("train", None, None), "reap", "2.5")
    assert asked == {"asked": ["python", "-m", "muster.placement", "reap", "2.5"]}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("echo first >&2; echo 'no Ray' >&2; echo 'srun: error: n0' >&2; exit 1", "no Ray"),
        ("echo '{}'; exit 3", "exit code 3 without a message"),
        ("echo text", "exit code 0 without a message"),
    ],
)
def test_a_failed_query_names_the_host_and_the_reason(program: str, reason: str, start_run: StartRun) -> None:
    node_program(start_run("train", ray=RAY), program)
    with pytest.raises(click.ClickException, match=f"n0 could not list what train runs: {reason}"):
        query_placement(entry_for("train", None, None), "list")


def test_without_ray_nothing_is_placed(start_run: StartRun) -> None:
    start_run("train")
    with pytest.raises(click.ClickException, match="train has no Ray cluster: nothing is placed on it"):
        query_placement(entry_for("train", None, None), "list")


def test_a_program_that_cannot_be_started_is_named(start_run: StartRun) -> None:
    write_json(start_run("train", ray=RAY).attempt(0).node_record(0), {"python": "/nonexistent/python", "pid": 1})
    with pytest.raises(click.ClickException, match="/nonexistent/python could not be run on "):
        query_placement(entry_for("train", None, None), "list")


def test_programs_and_groups_are_listed_with_state_and_owner(capsys: pytest.CaptureFixture[str]) -> None:
    programs = [
        entry("a"),
        entry("b", "silent", owned=None, host=None, pid=None, why="it does not answer"),
        entry("c", "ended", owned=False, exit="exited with 3", why="its driver is gone"),
    ]
    print_placement(programs, [entry("g", owned=False, why="no program uses it")])
    rows = [
        [cell.strip() for cell in line.rstrip().split("  ") if cell] for line in capsys.readouterr().out.splitlines()
    ]
    assert rows == [
        ["program", "host", "pid", "state", "owner"],
        ["a", "n1", "42", "running for 2 h", "process 7 on n0"],
        ["b", "-", "-", "does not answer", "not known: it does not answer"],
        ["c", "n1", "42", "exited with 3", "none: its driver is gone"],
        ["g", "-", "-", "placement group", "none: no program uses it"],
    ]


def test_an_empty_cluster_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_placement([], [])
    assert capsys.readouterr().out == "nothing is placed on the cluster\n"


def test_a_duration_has_the_largest_unit_that_fits() -> None:
    texts = {-1: "0 s", 59: "59 s", 60: "1 min", 7300: "2 h", 200_000: "2 d"}
    assert {seconds: _duration(seconds) for seconds in texts} == texts


def test_the_answer_may_follow_warnings_of_the_launcher(start_run: StartRun) -> None:
    answer = {"programs": [], "groups": []}
    node_program(start_run("train", ray=RAY), f"echo 'srun: warning' >&2; echo '{json.dumps(answer)}'")
    assert query_placement(entry_for("train", None, None), "list") == answer
