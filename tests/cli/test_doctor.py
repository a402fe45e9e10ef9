"""`muster doctor`: the report as a table and as JSON, and its exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke

from muster.doctor.check_result import CheckResult
from muster.doctor.examine import Examination, Report

PASSED = CheckResult("python", "pass", "Python 3.11")
WARNED = CheckResult("clocks", "warn", "n1 is 3 s ahead", "use NTP")
FAILED = CheckResult("ray", "fail", "none on n1\x1b[2J", "pip install ray", ("n1",))


def reports(monkeypatch: pytest.MonkeyPatch, *results: CheckResult, complete: bool = True) -> None:
    report = Report("machine", results, None, {}, complete)
    monkeypatch.setattr(Examination, "report", lambda self: report)


@pytest.mark.parametrize(
    ("results", "complete", "code"),
    [([PASSED, WARNED], True, 0), ([PASSED, FAILED], True, 1), ([PASSED], False, 125)],
)
def test_the_exit_code_says_whether_a_check_failed_or_could_not_be_run(
    results: list[CheckResult], complete: bool, code: int, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    reports(monkeypatch, *results, complete=complete)
    done = invoke("doctor", "--backend", "local")
    assert done.code == code and ("some checks could not be run" in done.out) == (not complete)


def test_the_table_has_findings_remedies_and_a_count(monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    reports(monkeypatch, PASSED, WARNED, FAILED)
    out = invoke("doctor", "--backend", "local").out
    lines = [line.split() for line in out.splitlines()]
    assert ["warn", "clocks", "n1", "is", "3", "s", "ahead"] in lines and ["->", "use", "NTP"] in lines
    assert out.splitlines()[-1] == "1 pass, 1 warn, 1 fail" and "\x1b" not in out


@pytest.mark.parametrize("refused", [False, True])
def test_colours_of_a_terminal_are_left_out_with_no_color(
    refused: bool, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLORTERM", ""), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    if not refused:
        monkeypatch.delenv("NO_COLOR")
    reports(monkeypatch, PASSED, FAILED)
    out = invoke("doctor", "--backend", "local").out
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]", out)) == (not refused)


def test_json_is_the_report(monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    reports(monkeypatch, FAILED)
    done = invoke("doctor", "--backend", "local", "--json")
    shown = json.loads(done.out)
    assert (done.code, shown["result"], shown["where"]) == (1, "fail", "machine")
    assert shown["checks"][0]["advice"] == "pip install ray" and shown["checks"][0]["nodes"] == ["n1"]


def test_a_mistake_is_refused_before_any_check(monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    reports(monkeypatch, PASSED)
    done = invoke("doctor", "--backend", "local", "--workdir", "/nonexistent")
    assert (done.code, done.out) == (2, "") and "--workdir /nonexistent: no such directory" in done.err


def test_a_job_file_without_a_command_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    reports(monkeypatch, PASSED)
    (tmp_path / "job.yaml").write_text("backend: local\nnodes: 2\n")
    assert invoke("doctor", "-f", str(tmp_path / "job.yaml")).code == 0
