"""`muster programs`: programs with their owners, as a table and as JSON."""

from __future__ import annotations

import json

import pytest
from tests.cli.invocation import Invoke, StartRun, node_program

GROUPS = [{"name": "used", "owned": True, "why": "program a"}, {"name": "left", "owned": False, "why": "no program"}]
FOUND = {
    "programs": [
        {"name": "a", "host": "n1", "pid": 42, "state": "ended", "exit": "exited with 0", "owned": True, "why": "x"}
    ],
    "groups": GROUPS,
}


@pytest.fixture(autouse=True)
def cluster(start_run: StartRun) -> None:
    run = start_run("train", ray={"address": "n0:6379"})
    node_program(run, f"echo '{json.dumps(FOUND)}'")


def test_groups_that_their_program_owns_are_left_out_of_the_table(invoke: Invoke) -> None:
    done = invoke("programs")
    names = [line.split()[0] for line in done.out.splitlines()]
    assert (done.code, names) == (0, ["program", "a", "left"])


def test_json_has_everything(invoke: Invoke) -> None:
    assert json.loads(invoke("programs", "train", "--json").out) == FOUND


def test_a_run_without_ray_is_refused(start_run: StartRun, invoke: Invoke) -> None:
    start_run("plain")
    done = invoke("programs", "plain")
    assert (done.code, done.out) == (1, "") and "plain has no Ray cluster" in done.err
