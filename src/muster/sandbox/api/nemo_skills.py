"""NeMo-Skills' words for a program and its result: pure translation, and exactly as that contract has them.

Its clients index `process_status`, `stdout` and `stderr` whatever the HTTP status, so every answer has all three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.sandbox.engine.languages import IPYTHON, Languages, UnknownLanguage
from muster.sandbox.models import CellResult, ProgramResult
from muster.sandbox.output import strip_ipython_formatting

VERBOSITIES = ("Plain", "Minimal", "Context", "Verbose")
TIDIED = ("Plain", "Minimal")
DEFAULT_OUTPUT = 1000


class BadRequest(ValueError):
    """What is wrong with it, for its sender."""


@dataclass(frozen=True)
class ExecuteRequest:
    """What was asked for; `timeout` as it was written, since the answer repeats it."""

    code: str
    timeout: int | float
    language: str
    stdin: str
    max_output: int
    verbosity: str
    session: str | None
    must_exist: bool  # the session: a word of ours
    workspace: str | None
    memory_mb: int | None
    report: bool


@dataclass(frozen=True)
class Bounds:
    """What a request may ask for."""

    timeout_s: float
    output: int
    memory_mb: int


def parse(body: Any, headers: Mapping[str, str], languages: Languages, bounds: Bounds) -> ExecuteRequest:
    """The request, or BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    for name in ("generated_code", "timeout"):
        if name not in body:
            raise BadRequest(f"{name} is required")
    try:
        language = languages.known(typed(body, "language", str, IPYTHON))
    except UnknownLanguage as error:
        raise BadRequest(str(error)) from None
    session = headers.get("x-session-id") or None
    if language == IPYTHON and session is None:
        raise BadRequest("X-Session-ID header required for ipython sessions")
    verbosity = typed(body, "traceback_verbosity", str, "Plain").capitalize()
    if verbosity not in VERBOSITIES:
        raise BadRequest(f"traceback_verbosity must be one of {', '.join(VERBOSITIES)}")
    return ExecuteRequest(
        code=typed(body, "generated_code", str, ""),
        timeout=within(body, "timeout", bounds.timeout_s, body["timeout"]),
        language=language,
        stdin=typed(body, "std_input", str, "") if body.get("std_input") is not None else "",
        max_output=int(within(body, "max_output_characters", bounds.output, DEFAULT_OUTPUT)),
        verbosity=verbosity,
        session=session,
        must_exist=bool(headers.get("x-session-must-exist")),
        workspace=headers.get("x-workspace-id") or body.get("workspace") or None,
        memory_mb=int(within(body, "memory_mb", bounds.memory_mb, 0)) or None if "memory_mb" in body else None,
        report=bool(body.get("report", False)),
    )


def typed(body: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name, default)
    if not isinstance(value, kind):
        raise BadRequest(f"{name} must be {'a string' if kind is str else 'a ' + kind.__name__}")
    return value


def within(body: dict[str, Any], name: str, most: float, default: Any) -> Any:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise BadRequest(f"{name} must be a number greater than 0")
    if value > most:
        raise BadRequest(f"{name} is {value}: at most {most:g} is allowed here")
    return value


# -- answers --------------------------------------------------------------------------------------------------------


def answer(request: ExecuteRequest, ended: ProgramResult) -> dict[str, Any]:
    """Of a stateless program: of its last step that ran."""
    if ended.reason == "timeout":
        return _status("timeout", stderr=timed_out(request.timeout))
    stdout, stderr = ended.stdout.text(request.max_output), ended.stderr.text(request.max_output)
    if ended.reason is not None:
        body = _status("error", stdout, f"{stderr}Execution ended: {ended.words}\n")
        return {**body, "reason": ended.reason}
    return _status(_process_status(request.language, ended), stdout, stderr)


def _process_status(language: str, ended: ProgramResult) -> str:
    if ended.exit_code == 0 or language in ("python", "pypy3"):
        return "completed"  # of Python even with an exception: the traceback says it
    return "failed" if language == "lean4" else "error"


def cell_answer(request: ExecuteRequest, ended: CellResult) -> dict[str, Any]:
    """Of a session's cell."""
    tidy = strip_ipython_formatting if request.verbosity in TIDIED else None
    if ended.status == "timeout":
        body = _status("timeout", stderr=timed_out(request.timeout))
    elif ended.status == "lost":
        why = f"Execution ended: {ended.why}" if ended.why else "connection closed"
        stderr = ended.stderr.text(request.max_output, tidy) + why + "\n"
        body = _status("error", ended.stdout.text(request.max_output, tidy), stderr)
    else:
        texts = (stream.text(request.max_output, tidy) for stream in (ended.stdout, ended.stderr))
        body = _status(ended.status, *texts)
    return {**body, "new_session_created": ended.created}


def refusal(words: str) -> dict[str, Any]:
    """Of a request of which nothing was run."""
    return {"error": words, **_status("error", stderr=words + "\n")}


def unreached(node: str) -> str:
    """A gateway's words for a request that it could hand to nobody."""
    return f"the sandbox could not be reached ({node}): nothing was run"


def broke_off(node: str) -> str:
    """A gateway's words for a request that it had handed to a node which then was lost."""
    return f"the sandbox of {node} broke off with this request in its hands: it may or may not have run"


def timed_out(timeout: float) -> str:
    return f"Execution timed out after {timeout} seconds\n"


def _status(status: str, stdout: str = "", stderr: str = "") -> dict[str, Any]:
    return {"process_status": status, "stdout": stdout, "stderr": stderr}
