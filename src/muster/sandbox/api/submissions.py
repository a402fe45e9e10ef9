"""Answers of models that are judged by tests (SandboxFusion's /submit): pure translation.

The tests are part of each request (`config.provided_data`): this server has no datasets. There are two kinds of them:

CommonOJDataset   the program reads standard input and its output is compared: `test` is a list of cases
AutoEvalDataset   the answer, followed by the code of `test`, is a program that must succeed
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from muster.sandbox.api.nemo_skills import BadRequest
from muster.sandbox.engine.language_table import ALIASES, BY_NAME

STDIO_PROBLEMS = ("CommonOJDataset",)
PROGRAM_PROBLEMS = ("AutoEvalDataset", "AutoEvalV4Dataset", "AutoEvalV5Dataset", "AutoEvalV6Dataset")
INSERT = "#<INSERT>"  # in the code of a test: where the answer goes
FLOAT_TOLERANCE = 1e-5  # relative
JEST_REPORT = "jest-report.json"
MARK_BYTES = 10
COMPILE_TIMEOUT_S, PROGRAM_TIMEOUT_S, STDIO_TIMEOUT_S = 40, 20, 10
_FENCED = re.compile(r"```([^\n`]*)\n(.*?)\n?[ \t]*```", re.DOTALL)
_UNCLOSED = re.compile(r"```([^\n`]*)\n(.*)", re.DOTALL)
_PYTHON_CODE = re.compile(
    r"^(?:(?:import|from|#|@)[^\n]*\n|\s*\n)*(?:def|class|async def) .*", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class ModelSubmission:
    """A parsed request: the problem (`row`), the model's answer and how to run it."""

    id: int | str
    kind: str
    row: dict[str, Any]
    completion: str
    config: dict[str, Any]

    @property
    def extra(self) -> dict[str, Any]:
        return self.config.get("extra") or {}


@dataclass(frozen=True)
class JudgedProgram:
    """A program to run for a submission: a body of /run_code, and what its output must be (None: it must succeed).

    `mark` is the last line that it must print: an answer that exits early does not pass.
    """

    body: dict[str, Any]
    expected: str | None = None
    case: dict[str, Any] | None = None
    mark: str = ""


def parse(body: Any) -> ModelSubmission:
    """Return the submission; raise BadRequest."""
    rows, config = problems(body)
    completion = body.get("completion")
    if not isinstance(completion, str):
        raise BadRequest("completion must be a string")
    if config.get("custom_extract_logic"):
        raise BadRequest("config.custom_extract_logic is not supported: it would run in the server")
    return ModelSubmission(body.get("id", 0), config["dataset_type"], chosen(rows, body.get("id")), completion, config)


def problems(body: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the problems that a request brings, and its configuration; raise BadRequest."""
    config = body.get("config") if isinstance(body, dict) else None
    if not isinstance(config, dict):
        raise BadRequest("config must be an object")
    known = STDIO_PROBLEMS + PROGRAM_PROBLEMS
    if config.get("dataset_type") not in known:
        raise BadRequest(f"config.dataset_type must be one of {', '.join(known)}: this server has no datasets")
    data = config.get("provided_data")
    rows: list[Any] = data if isinstance(data, list) else [data]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise BadRequest("config.provided_data must have the problem: this server has no datasets")
    return [_decoded(row) for row in rows], config


def chosen(rows: Sequence[dict[str, Any]], wanted: Any) -> dict[str, Any]:
    """Return the problem with this id, or the only one."""
    return next((row for row in rows if row.get("id") == wanted), rows[0])


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    """Return the problem with its fields decoded: they may be texts of JSON."""
    try:
        texts = {key: row[key] for key in ("labels", "test") if isinstance(row.get(key), str)}
        return {**row, **{key: json.loads(text, strict=False) for key, text in texts.items()}}
    except ValueError as error:
        raise BadRequest(f"config.provided_data is not JSON: {error}") from None


def prompt(row: dict[str, Any]) -> dict[str, Any]:
    """Return a problem as /get_prompts does."""
    return {"id": row.get("id", 0), "prompt": row.get("content", ""), "labels": row.get("labels") or {}}


# -- the programs of a submission -------------------------------------------------------------------------------------


def programs(submission: ModelSubmission) -> tuple[str, list[JudgedProgram]]:
    """Return the code that was found in the answer and the programs to run; raise BadRequest."""
    try:
        if submission.kind in STDIO_PROBLEMS:
            return _stdio_programs(submission)
        return _test_program(submission)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"config.provided_data lacks a field: {error}") from None


def _stdio_programs(submission: ModelSubmission) -> tuple[str, list[JudgedProgram]]:
    language = submission.config.get("language")
    if not isinstance(language, str):
        raise BadRequest("config.language is required")
    code = extracted(submission.completion, language)
    timeouts = _timeouts(submission, STDIO_TIMEOUT_S, STDIO_TIMEOUT_S)
    common = {"code": code, "language": language, **timeouts}
    cases = submission.row["test"]
    return code, [
        JudgedProgram({**common, "stdin": case["input"]["stdin"]}, case["output"]["stdout"], case) for case in cases
    ]


def _test_program(submission: ModelSubmission) -> tuple[str, list[JudgedProgram]]:
    labels, test = submission.row["labels"], submission.row["test"]
    language = labels["programming_language"]
    runner = labels.get("execution_language", language)
    assets = test.get("asset") or {}
    files = dict(json.loads(assets) if isinstance(assets, str) else assets)
    code, test_code = extracted(submission.completion, language), test.get("code", "")
    body = {"language": runner, "files": files, **_timeouts(submission, COMPILE_TIMEOUT_S, PROGRAM_TIMEOUT_S)}
    if language == "java":
        sources = {f"{BY_NAME['junit'].name_in(text)}.java": text for text in (test_code, code)}
        files.update({name: base64.b64encode(text.encode()).decode() for name, text in sources.items()})
        return code, [JudgedProgram({**body, "language": "junit", "code": ""})]
    written = repr if submission.extra.get("repr_code") else str
    if INSERT in test_code:
        full = test_code.replace(INSERT, written(code), 1)
    else:
        full = f"{written(_without_entry_point(code, language))}\n{test_code}"
    mark = secrets.token_hex(MARK_BYTES) if submission.extra.get("append_flag") and runner == "python" else ""
    full += f"\n\nprint({mark!r})" if mark else ""
    fetch = [JEST_REPORT] if runner == "jest" else []
    return code, [JudgedProgram({**body, "code": full, "fetch_files": fetch}, mark=mark)]


def _timeouts(submission: ModelSubmission, compiling: float, running: float) -> dict[str, float]:
    config = submission.config
    return {
        "compile_timeout": config.get("compile_timeout") or compiling,
        "run_timeout": config.get("run_timeout") or running,
    }


def _without_entry_point(code: str, language: str) -> str:
    """Return the code without the part that runs when it is started as a program."""
    marks = {"python": "if __name__ ==", "cpp": "int main("}
    return code.partition(marks[language])[0] if language in marks else code


def extracted(completion: str, language: str) -> str:
    """Return the code in an answer: the first fenced block in the language, else the first, else what looks like it.

    >>> extracted("So:\\n```bash\\nls\\n```\\nand\\n```py\\nprint(1)\\n```", "python")
    'print(1)'
    """
    blocks = _FENCED.findall(completion) or _UNCLOSED.findall(completion)
    wanted = canonical(language)
    named = [code for label, code in blocks if canonical(label.strip()) == wanted]
    if blocks:
        return str(named[0] if named else blocks[0][1])
    if wanted == "python":
        found = _PYTHON_CODE.search(completion)
        return found[0] if found else ""
    return completion if wanted in ("shell", "sql") else ""


def canonical(label: str) -> str:
    """Return the name of the language that a fenced block is labelled with."""
    for name in (label, label.lower()):
        if ALIASES.get(name, name) in BY_NAME:
            return ALIASES.get(name, name)
    return label.lower()


# -- verdicts ---------------------------------------------------------------------------------------------------------


def verdict(program: JudgedProgram, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the result of one program; `answer` is the response of /run_code."""
    stdout = (answer["run_result"] or {}).get("stdout") or ""
    passed = answer["status"] == "Success" and program.mark in stdout
    if passed and program.expected is not None:
        passed = same_output(stdout, program.expected)
    return {"passed": passed, "exec_info": answer, "test_info": program.case}


def same_output(printed: str, expected: str) -> bool:
    """Return whether the lines are the same, without regard to case, surrounding blanks and small errors of numbers."""
    ours, theirs = ([line.strip().lower() for line in text.strip().split("\n")] for text in (printed, expected))
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _same_line(printed: str, expected: str) -> bool:
    if printed == expected:
        return True
    try:
        wanted = float(expected)
        return abs(float(printed) - wanted) < FLOAT_TOLERANCE * max(abs(wanted), 1e-10)
    except ValueError:
        return False


def evaluation(
    submission: ModelSubmission, code: str, tests: Sequence[dict[str, Any]], full_code: str
) -> dict[str, Any]:
    """Return the response to a submission."""
    return {
        "id": submission.id,
        "accepted": bool(tests) and all(test["passed"] for test in tests),
        "extracted_code": code,
        "full_code": full_code,
        "test_code": None,
        "tests": list(tests),
        "extracted_type": None,
        "extra": _jest_cases(tests),
    }


def _jest_cases(tests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    report = next(
        (test["exec_info"]["files"][JEST_REPORT] for test in tests if JEST_REPORT in test["exec_info"]["files"]), None
    )
    if report is None:
        return {}
    try:
        suites = json.loads(base64.b64decode(report))["testResults"]
        cases = [
            {
                "passed": case["status"] == "passed",
                "full_name": case["fullName"],
                "file": suite["name"],
                "suite": " > ".join(case["ancestorTitles"]),
                "test": case["title"],
                "failure_messages": case["failureMessages"],
            }
            for suite in suites
            for case in suite["assertionResults"]
        ]
    except (ValueError, KeyError, TypeError):
        return {}  # the program wrote this file: it may be anything
    return {"jest_cases": cases}
