"""The API of NeMo-Skills (/execute): pure translation, exactly as that contract defines it.

Its clients index `process_status`, `stdout` and `stderr` whatever the HTTP status, so every response has all three.
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
PLAIN_VERBOSITIES = ("Plain", "Minimal")  # escape sequences are removed from the output
DEFAULT_OUTPUT_CHARACTERS = 1000
SHOWN_MAX = 10**18  # of integers in messages: longer ones may not even be converted to text
NoneType = type(None)


class BadRequest(ValueError):
    """An invalid request; the message is for its sender."""


@dataclass(frozen=True)
class ExecuteRequest:
    """A parsed request; `timeout` keeps its type, since the response repeats it."""

    code: str
    timeout: int | float
    language: str
    stdin: str
    max_output: int
    verbosity: str
    session: str | None
    must_exist: bool  # the session; an extension of this server
    workspace: str | None
    memory_mb: int | None
    report: bool


@dataclass(frozen=True)
class Bounds:
    """The limits of a request."""

    timeout_s: float
    output: int
    memory_mb: int


def parse(body: Any, headers: Mapping[str, str], languages: Languages, bounds: Bounds) -> ExecuteRequest:
    """Return the request; raise BadRequest."""
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
        max_output=int(within(body, "max_output_characters", bounds.output, DEFAULT_OUTPUT_CHARACTERS)),
        verbosity=verbosity,
        session=session,
        must_exist=bool(headers.get("x-session-must-exist")),
        workspace=headers.get("x-workspace-id") or typed(body, "workspace", (str, NoneType), None) or None,
        memory_mb=int(within(body, "memory_mb", bounds.memory_mb, 0)) or None if "memory_mb" in body else None,
        report=bool(body.get("report", False)),
    )


def typed(body: dict[str, Any], name: str, kind: type | tuple[type, ...], default: Any) -> Any:
    """Return a field; raise BadRequest if it has another type, the first of `kind` if there are several."""
    value = body.get(name, default)
    if not isinstance(value, kind):
        wanted = kind[0] if isinstance(kind, tuple) else kind
        raise BadRequest(f"{name} must be {'a string' if wanted is str else 'a ' + wanted.__name__}")
    return value


def within(body: dict[str, Any], name: str, limit: float, default: Any) -> Any:
    """Return a field; raise BadRequest unless it is a number greater than 0 and at most `limit`."""
    value = body.get(name, default)
    # Not math.isfinite: it fails for integers beyond the range of floats.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise BadRequest(f"{name} must be a number greater than 0")
    if value > limit:
        shown = value if isinstance(value, float) or value < SHOWN_MAX else "a very large number"
        raise BadRequest(f"{name} is {shown}: at most {limit:g} is allowed here")
    return value


# -- responses --------------------------------------------------------------------------------------------------------


def answer(request: ExecuteRequest, ended: ProgramResult) -> dict[str, Any]:
    """Return the response to a program; `ended` is the result of its last step that ran."""
    if ended.reason == "timeout":
        return _status("timeout", stderr=timeout_message(request.timeout))
    stdout, stderr = ended.stdout.text(request.max_output), ended.stderr.text(request.max_output)
    if ended.reason is not None or ended.signal is not None:
        body = _status("error", stdout, f"{stderr}Execution ended: {ended.message}\n")
        return body if ended.reason is None else {**body, "reason": ended.reason}
    return _status(_process_status(request.language, ended), stdout, stderr)


def _process_status(language: str, ended: ProgramResult) -> str:
    if ended.exit_code == 0 or language in ("python", "pypy3"):
        return "completed"  # for Python also after an exception: the traceback is in stderr
    return "failed" if language == "lean4" else "error"


def cell_answer(request: ExecuteRequest, ended: CellResult) -> dict[str, Any]:
    """Return the response to a session's cell."""
    cleanup = strip_ipython_formatting if request.verbosity in PLAIN_VERBOSITIES else None
    if ended.status == "timeout":
        body = _status("timeout", stderr=timeout_message(request.timeout))
    elif ended.status == "lost":
        why = f"Execution ended: {ended.why}" if ended.why else "connection closed"
        stderr = ended.stderr.text(request.max_output, cleanup) + why + "\n"
        body = _status("error", ended.stdout.text(request.max_output, cleanup), stderr)
    else:
        texts = (stream.text(request.max_output, cleanup) for stream in (ended.stdout, ended.stderr))
        body = _status(ended.status, *texts)
    return {**body, "new_session_created": ended.created}


def unreachable_message(node: str) -> str:
    """Return a gateway's message for a request that it could not forward."""
    return f"the sandbox could not be reached ({node}): nothing was run"


def lost_message(node: str) -> str:
    """Return a gateway's message for a request whose node was lost."""
    return f"the connection to the sandbox of {node} broke during this request: it may or may not have run"


def timeout_message(timeout: float) -> str:
    return f"Execution timed out after {timeout} seconds\n"


def _status(status: str, stdout: str = "", stderr: str = "") -> dict[str, Any]:
    return {"process_status": status, "stdout": stdout, "stderr": stderr}
