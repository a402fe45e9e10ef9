"""`muster reap`: what it lists, when it asks, what it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke, StartRun, node_program
from tests.runs.conftest import FakeRun

ORPHAN = {"name": "orphan", "host": "n1", "pid": 42, "state": "ended", "exit": None, "owned": False, "why": "gone"}
LISTED = {
    "programs": [ORPHAN, {**ORPHAN, "name": "owned", "owned": True}, {**ORPHAN, "name": "unclear", "owned": None}],
    "groups": [{"name": "g", "owned": False, "why": "gone"}],
}
REAPED = {"programs": [ORPHAN], "groups": LISTED["groups"], "silent": ["orphan"]}


@pytest.fixture(autouse=True)
def cluster(start_run: StartRun) -> FakeRun:
    """A cluster whose head answers `list` and `reap`, and notes what it was asked."""
    return answering(start_run("train", ray={"address": "n0:6379"}), LISTED, REAPED)


def answering(run: FakeRun, listed: object, reaped: object) -> FakeRun:
    answer = f"*reap*) echo '{json.dumps(reaped)}' ;; *) echo '{json.dumps(listed)}' ;;"
    node_program(
        run, f'echo "$MUSTER_SESSION_COMMAND" >>"{run.root}/asked"; case $MUSTER_SESSION_COMMAND in {answer} esac'
    )
    return run


def asked(run: FakeRun) -> list[list[str]]:
    path = Path(run.root, "asked")
    return [json.loads(line)[3:] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_dry_run_lists_what_has_no_owner_and_ends_nothing(cluster: FakeRun, invoke: Invoke) -> None:
    done = invoke("reap", "--dry-run")
    assert done.code == 0 and [line.split()[0] for line in done.out.splitlines()] == ["program", "orphan", "g"]
    assert asked(cluster) == [["list"]]


def test_a_dry_run_as_json_has_only_what_has_no_owner(cluster: FakeRun, invoke: Invoke) -> None:
    assert json.loads(invoke("reap", "--dry-run", "--json").out) == {"programs": [ORPHAN], "groups": LISTED["groups"]}
    assert asked(cluster) == [["list"]]


def test_with_yes_everything_without_an_owner_is_ended_and_named(cluster: FakeRun, invoke: Invoke) -> None:
    done = invoke("reap", "--yes", "--grace", "2.5")
    assert (done.code, done.out) == (0, "ended: orphan, group g\n")
    assert done.err == "muster: orphan did not answer; its actor was killed, which ends its program\n"
    assert asked(cluster) == [["reap", "2.5"]]


def test_the_grace_period_has_the_name_and_units_of_run(cluster: FakeRun, invoke: Invoke) -> None:
    assert invoke("reap", "-y", "--stop-grace", "1m").code == 0
    assert asked(cluster) == [["reap", "60.0"]]
    shown = invoke("reap", "--help").out
    assert "--stop-grace TIME" in shown and "--grace" not in shown.replace("--stop-grace", "")


def test_with_yes_json_is_the_answer(invoke: Invoke) -> None:
    assert json.loads(invoke("reap", "--yes", "--json").out) == REAPED


@pytest.mark.parametrize(("answer", "ended"), [(True, [["list"], ["reap", "10.0"]]), (False, [["list"]])])
def test_on_a_terminal_it_asks(
    answer: bool, ended: list[list[str]], cluster: FakeRun, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda text: answer)
    assert invoke("reap").code == 0
    assert asked(cluster) == ended


@pytest.mark.parametrize("words", [["reap"], ["reap", "--json"]])
def test_without_a_terminal_it_needs_yes_or_dry_run(words: list[str], cluster: FakeRun, invoke: Invoke) -> None:
    done = invoke(*words)
    assert done.code == 2 and "give --yes, or --dry-run to only list" in done.err
    assert asked(cluster) == []


def test_with_nothing_to_end_it_says_so(cluster: FakeRun, invoke: Invoke) -> None:
    empty: dict[str, list[object]] = {"programs": [], "groups": []}
    answering(cluster, empty, {**empty, "silent": []})
    assert invoke("reap", "--dry-run").out == "nothing is without an owner\n"
    assert invoke("reap", "--yes").out == "ended: nothing was without an owner\n"
