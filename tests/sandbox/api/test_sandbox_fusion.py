"""The API of SandboxFusion: `POST /run_code` as its clients send it."""

from __future__ import annotations

import base64
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.sandbox.results import ended

from muster.sandbox.api import sandbox_fusion
from muster.sandbox.api.nemo_skills import BadRequest, Bounds
from muster.sandbox.api.sandbox_fusion import CommonFields, NotebookRequest, RunCodeRequest
from muster.sandbox.engine.languages import Languages
from muster.sandbox.output import Captured

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

CPP_PROGRAM = "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n + 1 << std::endl; }"


def test_a_worker_that_was_lost_is_the_sandbox_s_error_in_sandboxfusion_s_words() -> None:
    answer = sandbox_fusion.answer([ended(exit_code=None, signal=9, reason="lost")], False, 1000, {})
    assert (answer["status"], answer["message"]) == ("SandboxError", "its worker was lost")
    assert answer["run_result"]["status"] == "Error"


def run_code(served: Served, **body: Any) -> dict[str, Any]:
    answer = served.ask("POST", "/run_code", body)
    assert answer.status == 200, answer
    return answer


def test_run_code_answers_as_sandboxfusion_does(strong: Served) -> None:
    answer = run_code(strong, code="print(input())", language="python", stdin="hi", memory_limit_MB=-1)
    assert answer["run_result"].pop("execution_time") > 0
    assert answer == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "executor_pod_name": None,
        "files": {},
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "hi\n", "stderr": ""},
    }


def test_run_code_tells_failures_and_timeouts_apart(strong: Served) -> None:
    failed = run_code(strong, code="import sys; sys.exit(3)", language="python")
    assert (failed["status"], failed["run_result"]["return_code"]) == ("Failed", 3)
    slow = run_code(strong, code="while True: pass", language="python", run_timeout=1)
    assert (slow["status"], slow["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert slow["run_result"]["return_code"] is None


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_run_code_has_results_of_compiling_and_running(strong: Served) -> None:
    good = run_code(strong, code=CPP_PROGRAM, language="cpp", stdin="1", compile_timeout=60)
    assert good["compile_result"]["return_code"] == 0 and good["run_result"]["stdout"] == "2\n"
    bad = run_code(strong, code="int main() { return x; }", language="cpp", compile_timeout=60)
    assert (bad["status"], bad["run_result"]) == ("Failed", None)
    assert "not declared" in bad["compile_result"]["stderr"]


def test_run_code_brings_files_and_fetches_what_was_made(strong: Served) -> None:
    answer = run_code(
        strong,
        code="data = open('in/a').read()\nopen('out', 'w').write(data * 2)",
        language="python",
        files={"in/a": base64.b64encode(b"xy").decode(), "none": None},
        fetch_files=["out", "missing"],
    )
    assert {name: base64.b64decode(data) for name, data in answer["files"].items()} == {"out": b"xyxy"}


def test_run_code_refuses_in_its_own_words(strong: Served) -> None:
    answer = strong.ask("POST", "/run_code", {"code": "1", "language": "cobol"})
    assert answer.status == 400 and answer["status"] == "SandboxError" and "unknown language" in answer["message"]


# -- translation ----------------------------------------------------------------------------------------------------

BOUNDS = Bounds(3600, 1 << 20, 4096)
HERE = Languages(os.environ["PATH"])


def test_a_request_has_defaults_and_what_was_sent() -> None:
    request = sandbox_fusion.parse({"code": "x", "language": "py", "stdin": None}, HERE, BOUNDS)
    assert request == RunCodeRequest("x", "python", 10, 10, b"", CommonFields())
    more = {"stdin": "in", "memory_limit_MB": 64, "compile_timeout": 1.5, "run_timeout": 2, "fetch_files": ["out"]}
    request = sandbox_fusion.parse(
        {"code": "x", "language": "python", "files": {"a": "eA==", "b": None}, **more}, HERE, BOUNDS
    )
    assert request == RunCodeRequest("x", "python", 1.5, 2, b"in", CommonFields(64, {"a": "eA=="}, ("out",)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "must be a JSON object"),
        ({"language": "python"}, "code is required"),
        ({"code": "x"}, "language is required"),
        ({"code": "x", "language": "ipython"}, "ipython needs a session"),
        ({"code": "x", "language": "cobol"}, "unknown language"),
        ({"code": 5, "language": "python"}, "code must be a string"),
        ({"code": "x", "language": "python", "files": {"a": 5}}, "files must hold base64 text"),
        ({"code": "x", "language": "python", "files": []}, "files must be a dict"),
        ({"code": "x", "language": "python", "run_timeout": 0}, "run_timeout must be a number greater than 0"),
        ({"code": "x", "language": "python", "run_timeout": True}, "run_timeout must be a number"),
        ({"code": "x", "language": "python", "stdin": 5}, "stdin must be a string"),
        ({"code": "x", "language": "python", "files": {"a": "é"}}, "files must hold base64 text: a does not"),
        ({"code": "x", "language": "python", "fetch_files": [1]}, "fetch_files must be strings"),
    ],
)
def test_a_request_that_cannot_be_run_is_refused(body: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        sandbox_fusion.parse(body, HERE, BOUNDS)


def test_limits_above_the_server_s_are_reduced_with_a_note() -> None:
    fields = {"memory_limit_MB": 9999, "run_timeout": 10**400, "compile_timeout": 3600}
    request = sandbox_fusion.parse({"code": "x", "language": "python", **fields}, HERE, BOUNDS)
    assert (request.run_timeout, request.compile_timeout, request.shared.memory_mb) == (3600, 3600, 4096)
    assert request.shared.message == (
        "run_timeout was reduced from inf to 3600, the limit of this server; "
        "memory_limit_MB was reduced from 9999 to 4096, the limit of this server"
    )
    for unlimited in (None, -1, 0):
        body = {"code": "x", "language": "python", "memory_limit_MB": unlimited}
        assert sandbox_fusion.parse(body, HERE, BOUNDS).shared == CommonFields()


def test_input_that_is_not_unicode_is_passed_on() -> None:
    request = sandbox_fusion.parse({"code": "x", "language": "python", "stdin": "\ud800"}, HERE, BOUNDS)
    assert request.stdin == b"\xed\xa0\x80"


def test_a_notebook_has_defaults_and_limits() -> None:
    assert sandbox_fusion.parse_notebook({"cells": ["1"]}, BOUNDS) == NotebookRequest(("1",), 0, 45, CommonFields())
    body = {"cells": [], "cell_timeout": 2, "total_timeout": 9000, "kernel": "python3", "fetch_files": ["a"]}
    request = sandbox_fusion.parse_notebook(body, BOUNDS)
    assert (request.cell_timeout, request.total_timeout, request.shared.fetch) == (2, 3600, ("a",))
    assert "total_timeout was reduced" in request.shared.message
    for body, message in (
        ({}, "cells is required"),
        ({"cells": [1]}, "cells must be strings"),
        ({"cells": [], "kernel": "ir"}, "kernel must be python3"),
        ({"cells": [], "total_timeout": 0}, "total_timeout must be a number greater than 0"),
    ):
        with pytest.raises(BadRequest, match=message):
            sandbox_fusion.parse_notebook(body, BOUNDS)


def test_a_notebook_s_cells_are_its_output() -> None:
    cells = [{"stdout": "1", "stderr": "", "display": [], "error": []}]
    good = sandbox_fusion.notebook_answer(ended(stdout=Captured(json.dumps(cells).encode())), {"f": "eA=="}, "note")
    assert (good["status"], good["cells"], good["message"], good["files"]) == ("Success", cells, "note", {"f": "eA=="})
    assert good["driver"]["stdout"] == "" and good["driver"]["status"] == "Finished"
    slow = sandbox_fusion.notebook_answer(ended(exit_code=None, signal=9, reason="timeout"), {}, "")
    assert (slow["status"], slow["cells"], slow["driver"]["status"]) == ("Failed", [], "TimeLimitExceeded")
    long = sandbox_fusion.notebook_answer(ended(stdout=Captured(b"[", more=True)), {}, "")
    assert (long["status"], long["message"]) == ("Failed", sandbox_fusion.UNKNOWN_RESULTS)
    lost = sandbox_fusion.notebook_answer(ended(exit_code=None, signal=9, reason="lost"), {}, "")
    assert (lost["status"], lost["message"]) == ("SandboxError", "its worker was lost")


def test_a_program_that_does_not_compile_has_no_result_of_running() -> None:
    answer = sandbox_fusion.answer([ended(exit_code=1)], True, 1000, {})
    assert (answer["status"], answer["compile_result"]["return_code"], answer["run_result"]) == ("Failed", 1, None)
    answer = sandbox_fusion.answer([ended(), ended(stdout=Captured(b"42"))], True, 1000, {"out": "eA=="})
    assert (answer["compile_result"]["stdout"], answer["run_result"]["stdout"]) == ("o", "42")
    assert answer["status"] == "Success"
    assert answer["files"] == {"out": "eA=="}


@pytest.mark.parametrize(
    ("fields", "status", "code", "stderr"),
    [
        ({"exit_code": 3}, "Finished", 3, "e"),
        ({"exit_code": None, "signal": 11}, "Finished", -11, "e"),
        ({"exit_code": None, "signal": 9, "reason": "timeout"}, "TimeLimitExceeded", None, "e"),
        (
            {"exit_code": None, "signal": 9, "reason": "memory"},
            "Finished",
            -9,
            "eExecution ended: it exceeded its memory limit\n",
        ),
    ],
)
def test_a_command_s_result(fields: dict[str, Any], status: str, code: int | None, stderr: str) -> None:
    run = sandbox_fusion.answer([ended(**fields)], False, 1000, {})["run_result"]
    assert run == {"status": status, "execution_time": 1.0, "return_code": code, "stdout": "o", "stderr": stderr}


def test_a_refusal_has_every_key_of_an_answer() -> None:
    refused = sandbox_fusion.refusal("why")
    assert refused["message"] == "why" and set(refused) > set(sandbox_fusion.answer([ended()], False, 1, {}))
