"""Submissions: the code of an answer, the programs that judge it, and their verdicts."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from muster.sandbox.api import submissions
from muster.sandbox.api.nemo_skills import BadRequest
from muster.sandbox.api.submissions import JudgedProgram, extracted, same_output


def body(kind: str, row: Any, completion: str = "```python\nx = 1\n```", **config: Any) -> dict[str, Any]:
    return {"id": 3, "completion": completion, "config": {"dataset_type": kind, "provided_data": row, **config}}


def programs(kind: str, row: Any, completion: str = "```python\nx = 1\n```", **config: Any) -> Any:
    return submissions.programs(submissions.parse(body(kind, row, completion, **config)))


@pytest.mark.parametrize(
    ("completion", "language", "code"),
    [
        ("Look:\n```python\na\n```\n```python\nb\n```", "python", "a"),
        ("```bash\nls\n```\n```Py\nb\n  c\n```\n", "python", "b\n  c"),
        ("```\nplain\n```", "python", "plain"),
        ("```cpp\nint main() {}", "cpp", "int main() {}"),
        ("```rust\nx\n```", "cpp", "x"),
        ("Sure.\nimport os\n\ndef f():\n    return 1\n", "python", "import os\n\ndef f():\n    return 1\n"),
        ("echo 1", "bash", "echo 1"),
        ("I cannot.", "python", ""),
        ("I cannot.", "cpp", ""),
    ],
)
def test_the_code_of_an_answer(completion: str, language: str, code: str) -> None:
    assert extracted(completion, language) == code


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        (" Yes \n", "YES", True),
        ("0.3333333", "0.33333334", True),
        ("0.34", "0.33", False),
        ("1\n2", "1", False),
        ("1", "one", False),
        ("nan", "1", False),
        ("", "", True),
    ],
)
def test_outputs_are_compared_by_line(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


def test_a_program_is_run_with_the_input_of_each_case() -> None:
    cases = [{"input": {"stdin": str(n)}, "output": {"stdout": str(n + 1)}} for n in (1, 2)]
    code, judged = programs("CommonOJDataset", {"test": json.dumps(cases)}, language="python", run_timeout=3)
    assert code == "x = 1" and [one.expected for one in judged] == ["2", "3"]
    expected = {"code": "x = 1", "language": "python", "stdin": "1", "compile_timeout": 10, "run_timeout": 3}
    assert judged[0].body == expected and judged[0].case == cases[0]


def test_a_test_is_appended_or_wrapped_around_the_answer() -> None:
    row = {"labels": {"programming_language": "python"}, "test": {"code": "assert x", "asset": {"f": "eA=="}}}
    completion = "```python\nx = 1\nif __name__ == '__main__':\n    x = 2\n```"
    _, (judged,) = programs("AutoEvalDataset", row, completion)
    assert judged.body["code"] == "x = 1\n\nassert x" and judged.body["files"] == {"f": "eA=="}
    assert (judged.body["language"], judged.body["compile_timeout"], judged.body["run_timeout"]) == ("python", 40, 20)
    row["test"] = json.dumps({"code": "before\n#<INSERT>\nafter", "asset": json.dumps({"f": "eA=="})})
    _, (judged,) = programs("AutoEvalV5Dataset", row)
    assert judged.body["code"] == "before\nx = 1\nafter" and judged.body["files"] == {"f": "eA=="}
    _, (judged,) = programs("AutoEvalDataset", row, extra={"repr_code": True})
    assert judged.body["code"] == "before\n'x = 1'\nafter"


def test_an_answer_that_exits_early_lacks_the_mark() -> None:
    row = {"labels": {"programming_language": "python"}, "test": {"code": "assert x"}}
    _, (judged,) = programs("AutoEvalDataset", row, extra={"append_flag": True})
    assert judged.body["code"].endswith(f"print({judged.mark!r})") and len(judged.mark) == 20
    assert submissions.verdict(judged, answer(stdout=judged.mark + "\n"))["passed"] is True
    assert submissions.verdict(judged, answer(stdout=""))["passed"] is False


def test_java_is_judged_by_junit_with_a_file_for_each_class() -> None:
    row = {"labels": {"programming_language": "java"}, "test": {"code": "public class SumTest {}"}}
    _, (judged,) = programs("AutoEvalDataset", row, "```java\npublic class Sum {}\n```")
    files = {name: base64.b64decode(data) for name, data in judged.body["files"].items()}
    assert files == {"SumTest.java": b"public class SumTest {}", "Sum.java": b"public class Sum {}"}
    assert (judged.body["language"], judged.body["code"]) == ("junit", "")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"config": None}, "config must be an object"),
        (
            {"config": {"dataset_type": "HumanEval"}},
            "config.dataset_type must be one of CommonOJDataset, .* no datasets",
        ),
        ({"config": {"dataset_type": "CommonOJDataset"}}, "config.provided_data must have the problem"),
        ({"completion": 5}, "completion must be a string"),
    ],
)
def test_what_cannot_be_judged_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        submissions.parse({**body("CommonOJDataset", {"test": []}), **changed})


def test_problems_that_lack_something_are_refused() -> None:
    for kind, row, message in (
        ("CommonOJDataset", {"test": []}, "config.language is required"),
        ("AutoEvalDataset", {"labels": {}, "test": {}}, "lacks a field: 'programming_language'"),
        ("AutoEvalDataset", {"labels": "{"}, "is not JSON"),
    ):
        with pytest.raises(BadRequest, match=message):
            programs(kind, row)
    with pytest.raises(BadRequest, match="it would run in the server"):
        programs("CommonOJDataset", {"test": []}, language="python", custom_extract_logic="submit_code_blocks([])")


def test_the_problem_is_found_by_its_id() -> None:
    rows = [{"id": 1, "content": "a"}, {"id": 3, "content": "b", "labels": '{"x": 1}'}]
    assert submissions.parse(body("CommonOJDataset", rows)).row["content"] == "b"
    assert submissions.chosen(rows, 7) == rows[0]
    found, _ = submissions.problems(body("CommonOJDataset", rows))
    assert submissions.prompt(found[1]) == {"id": 3, "prompt": "b", "labels": {"x": 1}}


def answer(status: str = "Success", stdout: str = "", files: dict[str, str] | None = None) -> dict[str, Any]:
    return {"status": status, "run_result": {"stdout": stdout}, "files": files or {}}


def test_a_verdict_needs_success_and_the_expected_output() -> None:
    program = JudgedProgram({}, "42", {"input": {}})
    assert submissions.verdict(program, answer(stdout="42\n")) == {
        "passed": True,
        "exec_info": answer(stdout="42\n"),
        "test_info": {"input": {}},
    }
    assert not submissions.verdict(program, answer(stdout="41"))["passed"]
    assert not submissions.verdict(program, answer("Failed", "42"))["passed"]
    assert not submissions.verdict(program, {"status": "Failed", "run_result": None})["passed"]


def test_an_evaluation_is_accepted_if_every_test_passed() -> None:
    submission = submissions.parse(body("CommonOJDataset", {"test": []}))
    tests = [{"passed": True, "exec_info": answer()}, {"passed": False, "exec_info": answer()}]
    assert submissions.evaluation(submission, "x", tests[:1], "full")["accepted"] is True
    assert submissions.evaluation(submission, "x", tests, "full")["accepted"] is False
    assert submissions.evaluation(submission, "x", [], "full")["accepted"] is False


def test_the_cases_of_jest_are_reported() -> None:
    submission = submissions.parse(body("AutoEvalDataset", {"test": {}}))
    case = {"status": "passed", "fullName": "a b", "ancestorTitles": ["a"], "title": "b", "failureMessages": []}
    report = json.dumps({"testResults": [{"name": "f", "assertionResults": [case]}]})
    for text, cases in ((report, 1), ("nonsense", 0), ("[]", 0)):
        files = {submissions.JEST_REPORT: base64.b64encode(text.encode()).decode()}
        made = submissions.evaluation(submission, "", [{"passed": True, "exec_info": answer(files=files)}], "")
        assert len(made["extra"].get("jest_cases", [])) == cases
    files = {submissions.JEST_REPORT: base64.b64encode(report.encode()).decode()}
    made = submissions.evaluation(submission, "", [{"passed": True, "exec_info": answer(files=files)}], "")
    (found,) = made["extra"]["jest_cases"]
    assert found == {
        "passed": True,
        "full_name": "a b",
        "file": "f",
        "suite": "a",
        "test": "b",
        "failure_messages": [],
    }
