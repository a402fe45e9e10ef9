"""The API of NeMo-Skills: requests are parsed and results translated exactly."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from tests.sandbox.results import ended

from muster.sandbox.api import nemo_skills
from muster.sandbox.api.nemo_skills import BadRequest, Bounds
from muster.sandbox.engine.languages import Languages
from muster.sandbox.models import CellResult
from muster.sandbox.output import Captured

BOUNDS = Bounds(3600, 1 << 20, 4096)
HERE = Languages(os.environ["PATH"])


def test_a_limit_is_an_error_with_its_reason_and_what_was_printed() -> None:
    request = nemo_skills.parse({"generated_code": "", "timeout": 5, "language": "python"}, {}, HERE, BOUNDS)
    answer = nemo_skills.answer(request, ended(exit_code=None, signal=9, reason="memory"))
    assert answer == {
        "process_status": "error",
        "stdout": "o",
        "reason": "memory",
        "stderr": "eExecution ended: it exceeded its memory limit\n",
    }


def test_numbers_must_be_numbers() -> None:
    for timeout in (True, "5", -1, float("nan"), float("inf"), None):
        with pytest.raises(BadRequest, match="timeout must be a number greater than 0"):
            nemo_skills.parse({"generated_code": "", "timeout": timeout, "language": "python"}, {}, HERE, BOUNDS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"timeout": 10**400}, "timeout is a very large number: at most"),
        ({"timeout": 10**5000}, "timeout is a very large number: at most"),
        ({"workspace": 5}, "workspace must be a string"),
        ({"workspace": ["w"]}, "workspace must be a string"),
    ],
)
def test_values_that_cannot_be_used_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        nemo_skills.parse({"generated_code": "", "timeout": 5, "language": "python", **fields}, {}, HERE, BOUNDS)


def parsed(headers: dict[str, str] | None = None, **fields: Any) -> nemo_skills.ExecuteRequest:
    body = {"generated_code": "x", "timeout": 5, "language": "python", **fields}
    return nemo_skills.parse(body, headers or {}, HERE, BOUNDS)


def test_a_request_has_defaults() -> None:
    assert parsed() == nemo_skills.ExecuteRequest("x", 5, "python", "", 1000, "Plain", None, False, None, None, False)
    assert parsed(std_input=None, language="py").language == "python"


def test_a_request_has_what_was_sent() -> None:
    request = parsed(
        {"x-session-id": "s", "x-session-must-exist": "1", "x-workspace-id": "w"},
        language="ipython",
        timeout=0.5,
        std_input="in",
        max_output_characters=10,
        traceback_verbosity="verbose",
        workspace="of the body",
        memory_mb=64,
        report=True,
    )
    expected = nemo_skills.ExecuteRequest("x", 0.5, "ipython", "in", 10, "Verbose", "s", True, "w", 64, True)
    assert request == expected
    assert parsed(workspace="of the body").workspace == "of the body"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"language": 5}, "language must be a string"),
        ({"language": "cobol"}, "unknown language 'cobol'"),
        ({"language": "ipython"}, "X-Session-ID header required"),
        ({"generated_code": None}, "generated_code must be a string"),
        ({"timeout": 3601}, "timeout is 3601: at most 3600 is allowed here"),
        ({"std_input": 5}, "std_input must be a string"),
        ({"max_output_characters": 0}, "max_output_characters must be a number greater than 0"),
        ({"max_output_characters": 1 << 21}, "at most"),
        ({"traceback_verbosity": "loud"}, "traceback_verbosity must be one of Plain, Minimal, Context, Verbose"),
        ({"memory_mb": 5000}, "memory_mb is 5000: at most 4096"),
    ],
)
def test_a_request_that_cannot_be_run_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parsed(**fields)


@pytest.mark.parametrize(
    ("language", "exit_code", "status"),
    [
        ("python", 0, "completed"),
        ("python", 1, "completed"),  # the traceback is in stderr
        ("pypy3", 1, "completed"),
        ("shell", 0, "completed"),
        ("shell", 1, "error"),
        ("lean4", 1, "failed"),
    ],
)
def test_the_status_depends_on_the_language(language: str, exit_code: int, status: str) -> None:
    request = replace(parsed(), language=language)
    answer = nemo_skills.answer(request, ended(exit_code=exit_code))
    assert answer == {"process_status": status, "stdout": "o", "stderr": "e"}


def test_a_timeout_has_no_output_and_repeats_the_number() -> None:
    for timeout, text in ((5, "5"), (0.5, "0.5"), (2.0, "2.0")):
        answer = nemo_skills.answer(parsed(timeout=timeout), ended(exit_code=None, signal=9, reason="timeout"))
        stderr = f"Execution timed out after {text} seconds\n"
        assert answer == {"process_status": "timeout", "stdout": "", "stderr": stderr}


def cell(status: str, verbosity: str = "Plain", **fields: Any) -> dict[str, Any]:
    request = parsed({"x-session-id": "s"}, language="ipython", traceback_verbosity=verbosity)
    values = {"stdout": Captured(b"\n\x1b[31mOut[1]: 5\n"), "stderr": Captured(b"e\n"), "created": True, "wall_s": 1.0}
    return nemo_skills.cell_answer(request, CellResult(status, **{**values, **fields}))


def test_a_cell_s_output_is_plain_unless_more_was_asked_for() -> None:
    expected = {"process_status": "completed", "stdout": "5\n", "stderr": "e\n", "new_session_created": True}
    assert cell("completed") == expected
    assert cell("error", "Context", created=False) == {
        "process_status": "error",
        "stdout": "\n\x1b[31mOut[1]: 5\n",
        "stderr": "e\n",
        "new_session_created": False,
    }


def test_a_lost_cell_says_why() -> None:
    assert cell("lost")["stderr"] == "e\nconnection closed\n"
    assert cell("lost", why="the session was deleted")["stderr"] == "e\nExecution ended: the session was deleted\n"
    assert cell("timeout")["stderr"] == "Execution timed out after 5 seconds\n"


def test_the_messages_of_a_gateway_say_whether_something_was_run() -> None:
    assert "n1" in nemo_skills.unreachable_message("n1") and "nothing was run" in nemo_skills.unreachable_message("n1")
    assert "may or may not have run" in nemo_skills.lost_message("n1")
