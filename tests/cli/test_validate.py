"""`muster validate`: problems of job files with their lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke

BAD = "nodes: 0\nservices:\n  judge:\n    command: x\n    restart: often\nnodez: 3\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.yaml").write_text("nodes: 2\n")
    (tmp_path / "bad.yaml").write_text(BAD)
    monkeypatch.chdir(tmp_path)


def test_a_valid_file_may_lack_its_command(invoke: Invoke) -> None:
    done = invoke("validate", "good.yaml")
    assert (done.code, done.out, done.err) == (0, "good.yaml: valid\n", "")


def test_every_problem_is_printed_with_file_and_line(invoke: Invoke) -> None:
    done = invoke("validate", "good.yaml", "bad.yaml")
    assert (done.code, done.out) == (2, "")
    assert sorted(line.partition(": ")[2][:24] for line in done.err.splitlines()) == [
        "error: bad.yaml:1: nodes",
        "error: bad.yaml:5: servi",
        "error: bad.yaml:6: unkno",
    ]


def test_json_lists_the_files_with_their_problems(invoke: Invoke) -> None:
    done = invoke("validate", "--json", "good.yaml", "bad.yaml")
    good, bad = json.loads(done.out)
    assert done.code == 2 and good == {"file": "good.yaml", "valid": True, "problems": []}
    assert not bad["valid"] and "bad.yaml:1: nodes: '0' is not valid" in bad["problems"][1]


@pytest.mark.parametrize(
    ("text", "told"),
    [("a: [", "bad.yaml:1:5: malformed YAML"), ("#!/bin/bash\n", "is a shell script"), ("", "bad.yaml: is empty")],
)
def test_a_file_that_is_no_job_file_is_refused_with_the_reason(text: str, told: str, invoke: Invoke) -> None:
    Path("bad.yaml").write_text(text)
    done = invoke("validate", "bad.yaml")
    assert done.code == 2 and told in done.err


def test_settings_do_not_count(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.yaml").write_text("nodez: 3\n")
    monkeypatch.setenv("MUSTER_SITE_CONFIG", str(tmp_path / "site.yaml"))
    assert invoke("validate", "good.yaml").code == 0
