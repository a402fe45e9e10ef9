"""--json: every command that prints facts has it, and errors are JSON objects."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from tests.cli.invocation import Invoke
from tests.docs.reference.commands import all_commands

from muster.cli.json_output import as_text_or_base64, error_record, hint

# Commands that print no facts: they start a program, serve, print a script or what is JSON anyway, or draw a view.
WITHOUT_JSON = {
    *("attach", "exec", "lab exec", "sandbox exec"),
    *("completion", "schema", "top", "ui", "torchrun", "torchrun-coordinator", "sandbox serve"),
    *("lab up", "lab down", "lab kill-node", "lab partition", "lab heal"),
}


def test_every_command_that_prints_facts_has_json() -> None:
    commands = {name.partition(" ")[2]: command for name, command in all_commands()}
    has = {name for name, command in commands.items() if any("--json" in param.opts for param in command.params)}
    groups = {name for name, command in commands.items() if isinstance(command, click.Group)}
    assert commands.keys() - has - groups == WITHOUT_JSON


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("nodes: 0\nnodez: 1\n")


@pytest.mark.parametrize(
    ("words", "code", "message", "advice"),
    [
        (["status", "--json", "nosuch"], 1, "no run or job nosuch", "name the runs directory with --runs-dir"),
        (["status", "--jsn", "--json"], 2, "unknown option --jsn", "did you mean --json?"),
        (["stauts", "--json"], 2, "No such command 'stauts'.", "Did you mean status?"),
        (["status", "--json", "a", "b"], 2, "Got unexpected extra argument (b)", "see `muster status --help`"),
        (
            ["run", "--json", "--nodes", "0", "x"],
            2,
            "--nodes: '0' is not valid",
            "allowed: a whole number, 1 or more, or a range such as 3-4",
        ),
        (
            ["run", "--dry-run", "--json", "-f", "bad.yaml"],
            2,
            "bad.yaml:1: nodes: '0'",
            "did you mean nodes, nodelist?",
        ),
        (["logs", "--json", "--rank", "x"], 2, "'x' is not a valid integer range", "see `muster logs --help`"),
        (["runs", "--json", "--runs-dir", "none"], 0, "", None),
    ],
)
def test_an_error_is_one_object_with_message_code_and_hint(
    words: list[str], code: int, message: str, advice: str | None, invoke: Invoke
) -> None:
    done = invoke(*words)
    assert done.code == code
    if code:
        assert done.out == "" and done.err.count("\n") == 1
        error = json.loads(done.err)["error"]
        assert message in error["message"] and (error["exit_code"], error["hint"]) == (code, advice)


def test_json_of_the_command_of_a_run_is_not_muster_s(invoke: Invoke) -> None:
    done = invoke("run", "--nodez", "--", "python", "x.py", "--json")
    assert done.code == 2 and done.err.startswith("muster: error: ")
    assert invoke("status", "nosuch").err.startswith("muster: error: ")


def test_several_problems_are_lines_of_the_message() -> None:
    assert error_record(["--nodes: bad", "--time: worse; allowed: minutes"], 2) == {
        "error": {"message": "--nodes: bad\n--time: worse; allowed: minutes", "exit_code": 2, "hint": None}
    }


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("what happened; what to do", "what to do"),
        ("a; b; what to do (see `muster run --help`)", "what to do"),
        ("what happened (see `muster run --help`)", "see `muster run --help`"),
        ("unknown option --x; did you mean --y? any other sbatch option: --sbatch KEY=VALUE", "did you mean --y?"),
        ("what happened", None),
    ],
)
def test_the_hint_is_what_to_do(problem: str, advice: str | None) -> None:
    assert hint(problem) == advice


def test_bytes_that_are_no_text_are_base64() -> None:
    assert as_text_or_base64("ü".encode()) == {"text": "ü"}
    assert as_text_or_base64(b"\xff") == {"base64": "/w=="}
